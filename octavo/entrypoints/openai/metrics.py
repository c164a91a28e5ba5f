"""/metrics: the engine's metrics and the server's own, in Prometheus' text format."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from octavo.entrypoints.openai.state import RequestContext, ServerCounts, ServerState
from octavo.metrics.engine_metrics import PREFIX, Counter, Gauge, Metric
from octavo.metrics.prometheus import CONTENT_TYPE, render
from octavo.metrics.replica_metrics import ReplicaMetrics

if TYPE_CHECKING:
    from octavo.engine.async_llm import AsyncLLM


async def show_metrics(server: ServerState, context: RequestContext) -> Response:
    """Return all metrics as they are now."""
    engine = server.engine
    # at once: a process that hangs is waited for only one time
    counted, counts, load = await asyncio.gather(
        engine.metrics_of_all(), server.counts_of_all(), server.num_requests_of_all()
    )
    metrics: list[Metric] = []
    if engine.metrics.enabled:
        metrics = counted.snapshot()
        if engine.config.lora is not None:
            metrics += _adapters(counted, engine.config.lora.max_loras)
    text = render([*metrics, *_own_metrics(engine, counts, load)], f"{server.args.metrics_prefix}:")
    return Response(text, media_type=CONTENT_TYPE)


def _adapters(counted: ReplicaMetrics, max_loras: int) -> list[Metric]:
    return [
        Gauge(
            PREFIX + "lora_requests_info",
            {
                **replica.labels,
                "max_lora": str(max_loras),
                "running_lora_adapters": ",".join(replica.counts.scheduler.running_adapters),
                "waiting_lora_adapters": ",".join(replica.counts.scheduler.waiting_adapters),
            },
            time.time(),
        )
        for replica in counted.engines
    ]


def _own_metrics(engine: AsyncLLM, counts: ServerCounts, load: int) -> list[Metric]:
    labels = engine.metrics.engines[0].labels
    metrics: list[Metric] = [
        Counter(PREFIX + "admission_rejections", {**labels, "reason": reason}, count)
        for reason, count in counts.rejections.items()
    ]
    cache = engine.config.cache
    facts = {
        "block_size": str(cache.block_size),
        "cache_dtype": cache.dtype,
        "enable_prefix_caching": str(cache.enable_prefix_caching),
    }
    replicas = [replica.labels for replica in engine.metrics.engines]
    metrics += [Gauge(PREFIX + "cache_config_info", {**replica, **facts}, 1.0) for replica in replicas]
    metrics += [
        Gauge(PREFIX + "engine_up", replica, float(is_serving))
        for replica, is_serving in zip(replicas, engine.engine_core.are_serving, strict=True)
    ]
    metrics.append(Gauge(PREFIX + "server_load", labels, float(load)))
    for (method, route, status), count in sorted(counts.http_requests.items()):
        metrics.append(Counter("http_requests", {"method": method, "handler": route, "status": str(status)}, count))
    return metrics
