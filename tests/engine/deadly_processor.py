"""A logits processor that kills its process, as a bug in native code would."""

from __future__ import annotations

import os
import signal
from typing import Any

from octavo.sampling.custom_processors import AdapterLogitsProcessor


class DeadlyProcessor(AdapterLogitsProcessor):
    """extra_args["die_at"]: number of the request's tokens at which the process dies."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        die_at = (params.extra_args or {}).get("die_at")
        if die_at is None:
            return None

        def process(output_ids: Any, logits: Any) -> Any:
            if len(output_ids) >= die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return logits

        return process
