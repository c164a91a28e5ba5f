"""The periodic line: rates since the last line, load now, and the prefix cache's recent hit rate."""

from __future__ import annotations

from collections import deque

from octavo.metrics.replica_metrics import ReplicaMetrics

_NUM_HIT_RATE_LINES = 10  # the hit rate is over so many lines


class StatsLine:
    """Makes the line of one engine with all its replicas."""

    def __init__(self, metrics: ReplicaMetrics, now_s: float) -> None:
        """metrics: as they are now; now_s: seconds of time.monotonic()"""
        self._last_s = now_s
        self._last = metrics.totals()
        self._cache_use: deque[tuple[int, int]] = deque(maxlen=_NUM_HIT_RATE_LINES)  # queries, hits per line

    def next(self, metrics: ReplicaMetrics, now_s: float) -> tuple[str, bool]:
        """Return the line since the last call, and whether anything happened or is still in work."""
        totals, scheduler = metrics.totals(), metrics.scheduler
        seconds = max(now_s - self._last_s, 1e-9)
        new = {name: totals[name] - self._last[name] for name in totals}
        self._last, self._last_s = totals, now_s
        self._cache_use.append((new["prefix_cache_queries"], new["prefix_cache_hits"]))
        queries, hits = (sum(column) for column in zip(*self._cache_use, strict=True))
        computed = new["prompt_tokens"] - new["prefix_cache_hits"]
        text = (
            f"prompt {max(computed, 0) / seconds:.1f} tokens/s, generation {new['generation_tokens'] / seconds:.1f} "
            f"tokens/s; {scheduler.num_running} running, {scheduler.num_waiting} waiting; "
            f"KV cache {scheduler.kv_cache_usage:.1%} used, prefix hits {hits / queries if queries else 0:.1%}"
        )
        if new["num_preemptions"]:
            text += f"; {new['num_preemptions']} preemptions"
        if new["spec_decode_num_drafts"]:
            accepted = new["spec_decode_num_accepted_tokens"]
            text += (
                f"; guesses {accepted / new['spec_decode_num_draft_tokens']:.0%} right, "
                f"{1 + accepted / new['spec_decode_num_drafts']:.1f} tokens a step with them"
            )
        is_busy = bool(new["generation_tokens"] or scheduler.num_running or scheduler.num_waiting)
        return text, is_busy
