"""The metrics of all engine replicas behind one front end."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from octavo.metrics.engine_metrics import EngineCounts, EngineMetrics, Metric
from octavo.types.stats import SchedulerStats


class ReplicaMetrics:
    """One EngineMetrics a replica; read together, each metric is told of every replica, and sums are of all.

    engines: by the index that outputs carry (engine_index)
    """

    def __init__(self, model_name: str, enabled: bool = True, num_replicas: int = 1, first_rank: int = 0) -> None:
        """first_rank: of the first of these replicas among all that serve the model; the label "engine" counts so."""
        self.enabled = enabled
        self._facts = (model_name, enabled, num_replicas, first_rank)
        self.engines = [EngineMetrics(model_name, enabled, first_rank + index) for index in range(num_replicas)]

    def of_all(self, observers: Iterable[Sequence[EngineCounts]]) -> ReplicaMetrics:
        """Return what several observers of these replicas have counted together. observers: the counts of each"""
        together = ReplicaMetrics(*self._facts)
        for every_counts in observers:
            for engine, counts in zip(together.engines, every_counts, strict=True):
                engine.counts.add(counts)
        return together

    @property
    def counts(self) -> list[EngineCounts]:
        """What was counted of each replica."""
        return [engine.counts for engine in self.engines]

    @property
    def scheduler(self) -> SchedulerStats:
        """The schedulers' states after their last steps: sums, and the mean use of the KV caches, all equally large."""
        states = [engine.scheduler for engine in self.engines]
        return SchedulerStats(
            num_running=sum(state.num_running for state in states),
            num_waiting=sum(state.num_waiting for state in states),
            kv_cache_usage=sum(state.kv_cache_usage for state in states) / len(states),
            num_preemptions=sum(state.num_preemptions for state in states),
        )

    def totals(self) -> dict[str, int]:
        """Return the counters as they are now, by name: sums over the replicas."""
        sums: Tally[str] = Tally()
        for engine in self.engines:
            sums.update(engine.totals())
        return dict(sums)

    def snapshot(self) -> list[Metric]:
        """Return all metrics as they are now; those of the same name stand together."""
        snapshots = [engine.snapshot() for engine in self.engines]
        return [metric for group in zip(*snapshots, strict=True) for metric in group]
