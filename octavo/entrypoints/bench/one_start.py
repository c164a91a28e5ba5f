"""One engine start in a fresh process, for `octavo bench startup`: options in as JSON, moments out as JSON."""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Load an engine and generate a token; print the moments in seconds of time.time()."""
    began = time.time()
    options = json.load(sys.stdin)
    from octavo.config import EngineArgs
    from octavo.entrypoints.llm import LLM
    from octavo.types.sampling_params import SamplingParams

    imported = time.time()
    llm = LLM.from_engine_args(EngineArgs.from_kwargs(**options))
    ready = time.time()
    llm.generate({"prompt_token_ids": [1]}, SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    moments = {"began": began, "imported": imported, "ready": ready, "first_token": time.time()}
    print(json.dumps(moments))


if __name__ == "__main__":
    main()
