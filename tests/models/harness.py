"""Runs a model over a paged cache without an engine: random block ids, any chunking, several requests a step."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from octavo.attention.context import ForwardContext
from octavo.errors import CheckpointError
from octavo.loader.cut import CutTensor
from octavo.loader.hf_config import HFConfig
from octavo.loader.weights import check_shape
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import AttentionMetadata, Float, Ops
from octavo.ops.kv_layout import KVCache, scales_of
from octavo.ops.reference import ReferenceOps
from octavo.ops.select import native_facts
from octavo.ops.tape import ForwardInputs, TapeLimits
from octavo.types.kv_spec import SlidingWindowSpec
from octavo.worker.bound_model import bind_model
from octavo.worker.kv_memory import cache_in

torch.set_num_threads(1)


def available_ops() -> list[Ops]:
    """Return one instance of every backend that is built here."""
    if native_facts() is None:
        return [ReferenceOps()]
    from octavo.ops.native import NativeOps

    return [ReferenceOps(), NativeOps()]


# -- tiny random models ------------------------------------------------------------------------------------------------

TINY: Mapping[str, Any] = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def random_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Return a Transformers model whose norms and biases are random too, so that leaving one out shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.3 * torch.randn_like(buffer))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.5 * parameter.shape[-1] ** -0.5)
    model.tie_weights()
    return model.eval()


def hf_config(model: PreTrainedModel) -> HFConfig:
    """Return the model's config as config.json would have it."""
    values = json.loads(model.config.to_json_string())
    return HFConfig({**values, "architectures": [type(model).__name__]})


def tensors_of(model: PreTrainedModel) -> dict[str, NDArray[np.float32]]:
    """Return what a safetensors file of the model holds: tied tensors once, experts one by one."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return dict(load_file(Path(folder) / "model.safetensors"))


@dataclass
class ArrayTensor:
    """A HostTensor over an array."""

    array: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def float32(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.array, dtype=np.float32)

    def compact(self, transposed: bool = False) -> None:
        return None

    def cut(self, rows: range, transposed: bool = False) -> CutTensor:
        return CutTensor(self, rows, transposed)


@dataclass
class ArrayWeights:
    """A WeightSource over arrays."""

    tensors: Mapping[str, NDArray[np.float32]]
    used: set[str] = field(default_factory=set)
    where: str = "arrays"

    def has(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str, shape: tuple[int, ...]) -> ArrayTensor:
        if name not in self.tensors:
            raise CheckpointError(f"no tensor {name!r}")
        check_shape(name, shape, self.tensors[name].shape, "arrays")
        self.used.add(name)
        return ArrayTensor(self.tensors[name])

    def stack(self, name: str, shape: tuple[int, int, int]) -> list[ArrayTensor]:
        return [ArrayTensor(matrix) for matrix in self.get(name, shape).array]

    def unused(self) -> list[str]:
        return sorted(set(self.tensors) - self.used)


def build(model: PreTrainedModel, ops: Ops, max_model_len: int = 128) -> CausalLM:
    """Return our model with the weights of Transformers' model."""
    return build_model(hf_config(model), ArrayWeights(tensors_of(model)), ops, max_model_len)


def transformers_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Return teacher-forced logits [T, V] of one sequence."""
    with torch.no_grad():
        return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].numpy()


# -- paged runs --------------------------------------------------------------------------------------------------------


@dataclass
class _Sequence:
    block_ids: list[int]
    num_computed: int = 0


class PagedRun:
    """One model over one paged cache, stepped by hand. Every layer has its own block table with its own random blocks.

    Pages that a sliding window has left are given up as the engine does: their table entry becomes the null block and
    their content NaN, so that reading one shows.
    """

    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        block_size: int = 8,
        num_blocks: int = 64,
        seed: int = 0,
        cache_dtype: str = "float32",
    ) -> None:
        self.model, self.ops, self.block_size = model, ops, block_size
        self.specs = dict(model.kv_cache_specs(block_size, cache_dtype))
        self.rng = np.random.default_rng(seed)
        self.caches: dict[str, KVCache] = {}
        self.free: dict[str, list[int]] = {}
        for name, spec in self.specs.items():
            memory = np.zeros(num_blocks * spec.page_size_bytes, np.uint8)
            self.caches[name] = cache_in(memory, spec, num_blocks)
            _spoil(self.caches[name])
            self.free[name] = (self.rng.permutation(num_blocks - 1) + 1).tolist()
        self.sequences: dict[str, dict[str, _Sequence]] = {}

    def step(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, Float]:
        """Compute the next tokens of some requests; return each one's logits [its tokens, V]."""
        rows = list(tokens)
        lengths = [len(tokens[row]) for row in rows]
        computed = [self._sequence(row, next(iter(self.specs))).num_computed for row in rows]
        token_ids = np.concatenate([np.asarray(tokens[row], np.int32) for row in rows])
        positions = np.concatenate(
            [np.arange(c, c + n, dtype=np.int32) for c, n in zip(computed, lengths, strict=True)]
        )
        metadata = {name: self._metadata(name, rows, lengths) for name in self.specs}
        logits = self.compute(token_ids, positions, metadata)
        starts = np.cumsum([0, *lengths])
        return {row: logits[a:b] for row, (a, b) in zip(rows, itertools.pairwise(starts), strict=True)}

    def compute(
        self, token_ids: NDArray[np.int32], positions: NDArray[np.int32], metadata: Mapping[str, AttentionMetadata]
    ) -> Float:
        """Return logits [T, V]."""
        hidden = self.model.forward(token_ids, positions, ForwardContext(self.ops, self.caches, metadata))
        return self.model.compute_logits(hidden, self.ops)

    def run(self, token_ids: Sequence[int], chunks: Sequence[int] = (), row: str = "row") -> Float:
        """Compute one sequence in chunks (by default at once); return logits [T, V]."""
        borders = np.cumsum([0, *chunks]) if chunks else np.array([0, len(token_ids)])
        parts = [self.step({row: token_ids[a:b]})[row] for a, b in itertools.pairwise(borders)]
        return np.concatenate(parts)

    def _sequence(self, row: str, layer: str) -> _Sequence:
        return self.sequences.setdefault(row, {}).setdefault(layer, _Sequence([]))

    def _metadata(self, layer: str, rows: Sequence[str], lengths: Sequence[int]) -> AttentionMetadata:
        seq_lens, slots, tables = [], [], []
        for row, length in zip(rows, lengths, strict=True):
            sequence = self._sequence(row, layer)
            self._give_up_pages(layer, sequence)
            end = sequence.num_computed + length
            while len(sequence.block_ids) * self.block_size < end:
                sequence.block_ids.append(self.free[layer].pop())
            for position in range(sequence.num_computed, end):
                block_id = sequence.block_ids[position // self.block_size]
                slots.append(block_id * self.block_size + position % self.block_size)
            sequence.num_computed = end
            seq_lens.append(end)
            tables.append(sequence.block_ids)
        block_table = np.zeros((len(rows), max(map(len, tables)) + 1), np.int32)
        for index, table in enumerate(tables):
            block_table[index, : len(table)] = table
        return AttentionMetadata(
            query_start=np.cumsum([0, *lengths], dtype=np.int32),
            seq_lens=np.array(seq_lens, np.int32),
            block_table=block_table,
            slot_mapping=np.array(slots, np.int64),
        )

    def _give_up_pages(self, layer: str, sequence: _Sequence) -> None:
        spec = self.specs[layer]
        if not isinstance(spec, SlidingWindowSpec):
            return
        first_visible = max(0, sequence.num_computed - spec.sliding_window + 1)
        for index in range(first_visible // self.block_size):
            block_id = sequence.block_ids[index]
            if block_id:
                _spoil(self.caches[layer][block_id : block_id + 1])
                self.free[layer].insert(0, block_id)
                sequence.block_ids[index] = 0


def _spoil(cache: KVCache) -> None:
    """Make every element NaN, by its scale where elements are codes."""
    if cache.dtype != np.int8:
        cache[:] = np.nan
        return
    for plane in (0, 1):
        scales_of(cache, plane)[:] = np.nan


class TapedRun(PagedRun):
    """The same from the tape, recorded over this run's caches."""

    def __init__(self, model: CausalLM, ops: Ops, max_tokens: int = 160, **options: Any) -> None:
        super().__init__(model, ops, **options)
        limits = TapeLimits(max_tokens, max_tokens, max_tokens, model.facts.hidden_size, len(self.specs))
        self.bound = bind_model(model, ops, self.caches, [(name,) for name in self.specs], limits)
        assert self.bound.tape_bytes is not None

    def compute(
        self, token_ids: NDArray[np.int32], positions: NDArray[np.int32], metadata: Mapping[str, AttentionMetadata]
    ) -> Float:
        rows = np.arange(len(token_ids), dtype=np.int32)
        inputs = ForwardInputs(token_ids, positions, rows, [metadata[name] for name in self.specs])
        return self.bound.logits(self.bound.forward(inputs)).copy()


def random_chunks(rng: np.random.Generator, total: int, largest: int) -> list[int]:
    """Return random positive sizes that sum to total."""
    chunks: list[int] = []
    while total:
        chunks.append(min(total, int(rng.integers(1, largest + 1))))
        total -= chunks[-1]
    return chunks
