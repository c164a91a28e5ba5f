"""One worker: a device, a model runner on it, and the methods that the executor calls by name."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from octavo.config import OctavoConfig
from octavo.distributed.connect import connect
from octavo.distributed.place import WorkerPlace
from octavo.errors import ConfigError, InvalidRequestError, PeerLostError
from octavo.loader.checkpoint import Checkpoint
from octavo.log import get_logger
from octavo.models.interface import CausalLM
from octavo.ops.select import select_ops
from octavo.platforms.cpu import MemoryFacts, memory_facts, resident_bytes
from octavo.types.kv_spec import KVCacheConfig, KVCacheSpec
from octavo.types.step import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from octavo.worker.model_runner import ModelRunner

logger = get_logger(__name__)

_PROFILE_TOKENS = 32  # activations grow in proportion to the tokens of a step; the rest is extrapolated


class Worker:
    """Call order: init_device, load_model, determine_available_memory, initialize_from_config, then steps."""

    def __init__(self, config: OctavoConfig, checkpoint: Checkpoint, place: WorkerPlace) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.place = place
        self.rank = place.rank

    def init_device(self) -> None:
        """Meet the other workers. Raises PeerLostError when one does not come."""
        self.groups = connect(self.place)
        self.model_runner = ModelRunner(self.config, select_ops(), self.groups)

    def load_model(self) -> None:
        try:
            self.model_runner.load_model(self.checkpoint)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for the model's weights and the tables of {self.config.model.max_model_len} positions "
                f"({error}); use a smaller model or set max_model_len"
            ) from error

    def get_model(self) -> CausalLM:
        return self.model_runner.model

    def get_kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return self.model_runner.kv_cache_specs()

    def determine_available_memory(self) -> int:
        """Return the bytes that the KV cache may take (see CacheConfig); call after load_model."""
        cache = self.config.cache
        activation_bytes = self._profile()
        if cache.memory_bytes is not None:
            return cache.memory_bytes
        facts = _own_share(memory_facts(), self.place.local_size, self.config.parallel.data_parallel_size_local)
        if cache.num_blocks_override is not None:
            return facts.available_bytes  # nobody asks: the plan has so many blocks whatever is free
        if cache.memory_utilization is not None:
            budget = int(facts.total_bytes * cache.memory_utilization) - resident_bytes() - activation_bytes
            reason = f"{100 * cache.memory_utilization:.0f}% of {_gib(facts.total_bytes)} less weights and activations"
        else:
            budget = int(facts.available_bytes * cache.memory_share) - activation_bytes
            reason = f"{100 * cache.memory_share:.0f}% of the {_gib(facts.available_bytes)} of memory that are free"
        if budget > facts.available_bytes:  # a share is a bound: scripts for a GPU of their own say 0.9 and more
            logger.warning("gpu_memory_utilization: %s, but only %s are free", reason, _gib(facts.available_bytes))
            budget = int(facts.available_bytes * cache.memory_share) - activation_bytes
            reason = f"{100 * cache.memory_share:.0f}% of what is free"
        if budget <= 0:
            raise ConfigError(
                f"nothing is left for the KV cache ({reason}): {_gib(facts.available_bytes)} are free and a step of "
                f"{self.config.scheduler.max_num_batched_tokens} tokens takes {_gib(activation_bytes)}; leave "
                "gpu_memory_utilization out or change it, set kv_cache_memory_bytes, or lower max_num_batched_tokens"
            )
        if self.get_kv_cache_specs():  # an encoder has no cache
            logger.info("KV cache: up to %s, %s", _gib(budget), reason)
        return budget

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig], max_model_len: int) -> None:
        plan = kv_cache_configs[self.rank]
        size_bytes = sum(tensor.size_bytes for tensor in plan.tensors)
        total_bytes = memory_facts().total_bytes
        if size_bytes > total_bytes:
            raise ConfigError(
                f"a KV cache of {plan.num_blocks} blocks takes {_gib(size_bytes)}, but there are {_gib(total_bytes)} "
                "of memory; lower kv_cache_memory_bytes or num_gpu_blocks_override"
            )
        try:
            self.model_runner.initialize_kv_cache(plan, max_model_len)
        except MemoryError as error:
            raise ConfigError(
                f"no memory for a KV cache of {_gib(size_bytes)} and {self.config.scheduler.max_num_seqs} requests of "
                f"{max_model_len} tokens ({error}); lower kv_cache_memory_bytes, max_num_seqs or max_model_len"
            ) from error

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        """Forward a step; None when `sample_tokens` must follow. Raises PeerLostError when another worker is lost."""
        with self._others_told_of_failure():
            return self.model_runner.execute_model(step)

    def sample_tokens(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        with self._others_told_of_failure():
            return self.model_runner.sample_tokens(grammar)

    @contextmanager
    def _others_told_of_failure(self) -> Iterator[None]:
        """Where several compute one step, a failure of one ends all: their caches and rows no longer agree."""
        try:
            yield
        except PeerLostError:
            raise
        except Exception as error:
            if self.place.world_size == 1:
                raise
            self.groups.abort()
            logger.exception("rank %d failed in a step", self.rank)
            raise PeerLostError(f"rank {self.rank} failed in a step: {type(error).__name__}: {error}") from error

    def load_adapter(self, path: str, identity: str, in_use: list[str]) -> None:
        """Read a LoRA adapter, so that requests can use it. Raises what is wrong with it.

        in_use: identities of adapters that must stay loaded
        """
        if self.model_runner.adapters is None:
            raise InvalidRequestError("LoRA is off: start it with enable_lora=True (--enable-lora)", "lora_request")
        self.model_runner.adapters.load(path, identity, in_use)

    def sleep(self, level: int) -> None:
        """Give memory back until `wake_up`: 1 the KV cache with all that is in it, 2 also the weights."""
        self.model_runner.release_memory(weights=level > 1)

    def wake_up(self) -> None:
        """Take the memory again; the KV cache is empty."""
        self.model_runner.regain_memory(self.checkpoint)

    def apply_model(self, function: Callable[[CausalLM], Any]) -> Any:
        """Call a user's function with the model."""
        return function(self.get_model())

    def shutdown(self) -> None:
        """Leave the other workers."""
        self.groups.close()

    def _profile(self) -> int:
        """Run a small step, which also warms up threads and pages; return the largest step's activation bytes.

        Op by op, these are extrapolated from what the small step allocates.
        """
        scheduler = self.config.scheduler
        num_tokens = min(_PROFILE_TOKENS, scheduler.max_num_batched_tokens, scheduler.max_model_len)
        tracemalloc.start()
        try:
            tape_bytes = self.model_runner.profile_run(num_tokens)
            _, peak_bytes = tracemalloc.get_traced_memory()
        except MemoryError as error:
            raise ConfigError(
                f"no memory for steps of up to {scheduler.max_num_batched_tokens} tokens ({error}); lower "
                "max_num_batched_tokens"
            ) from error
        finally:
            tracemalloc.stop()
        if tape_bytes is not None:
            return tape_bytes
        return peak_bytes * -(-scheduler.max_num_batched_tokens // num_tokens)


def _own_share(facts: MemoryFacts, num_workers: int, num_replicas: int) -> MemoryFacts:
    """Return what a worker of the first of several engine replicas may count on.

    The replica's own workers are loaded by now; those of the others will hold as much.
    """
    others_bytes = (num_replicas - 1) * num_workers * resident_bytes()
    count = num_workers * num_replicas
    return MemoryFacts(facts.total_bytes // count, (facts.available_bytes - others_bytes) // count)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
