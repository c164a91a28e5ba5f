"""A logits processor that kills its process, as a bug in native code would, or takes its time."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from octavo.sampling.custom_processors import AdapterLogitsProcessor


class OddProcessor(AdapterLogitsProcessor):
    """extra_args: die_at, the number of the request's tokens at which the process dies; nap_s, seconds per token."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        options = params.extra_args or {}
        if not options:
            return None

        def process(output_ids: Any, logits: Any) -> Any:
            if len(output_ids) >= options.get("die_at", float("inf")):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(options.get("nap_s", 0))
            return logits

        return process
