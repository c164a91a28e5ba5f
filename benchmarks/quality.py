"""Measure what rounding costs: the KL divergence of next-token distributions to the exact path, over real text.

    python benchmarks/quality.py [--model smollm2-135m-instruct] [--positions 4096] [--context 512] [--text FILE ...]

Prints the mean, the 99th percentile and the largest divergence, the ratio of perplexities, and how often the likeliest
token is the same. Text: files given, else the documentation of this repository and the licences that come with Python
and the system. Both models read the same chunks of `context` tokens from an empty cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.attention.context import ForwardContext
from octavo.config import EngineArgs
from octavo.engine.resolve import resolve
from octavo.models.interface import CausalLM
from octavo.models.registry import build_model
from octavo.ops.interface import AttentionMetadata, Ops
from octavo.ops.select import select_ops
from octavo.quantization.open import open_model_weights

_BLOCK_SIZE = 16
_LOGIT_ROWS = 64  # positions whose logits are held at a time: 262,144 columns are 1 MB a row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--quantization", default=None, help="int8 or int4, for a float checkpoint")
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--text", type=Path, nargs="*", default=None)
    arguments = parser.parse_args()

    resolved = resolve(EngineArgs(model=arguments.model, quantization=arguments.quantization))
    assert resolved.tokenizer is not None
    start = resolved.tokenizer.encode("")  # of every text: models that expect it do odd things without
    text_ids = resolved.tokenizer.encode(read_text(arguments.text))[len(start) :]
    token_ids = np.array(text_ids[: arguments.positions], np.int32)
    if len(token_ids) < arguments.positions:
        sys.exit(f"the text has only {len(token_ids)} tokens; give longer files with --text")
    ops = select_ops()

    def build(exact: bool) -> CausalLM:
        load = dataclasses.replace(resolved.config.load, exact=exact)
        if exact:
            load = dataclasses.replace(load, quantization=None)  # against the checkpoint itself
        weights = open_model_weights(resolved.checkpoint, load)
        return build_model(resolved.checkpoint.config, weights, ops, arguments.context)

    models = [build(True), build(False)]
    step = arguments.context - len(start)
    chunks = [np.array([*start, *token_ids[i : i + step]], np.int32) for i in range(0, len(token_ids), step)]
    report(np.concatenate([compare(models, chunk, ops) for chunk in chunks]))


def read_text(paths: list[Path] | None) -> str:
    """Return the given files, or English prose that every development machine has."""
    if paths:
        return "\n".join(path.read_text(encoding="utf-8") for path in paths)
    root = Path(__file__).resolve().parents[1]
    found = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    found += [Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", Path("/usr/share/common-licenses/GPL-3")]
    return "\n".join(path.read_text(encoding="utf-8") for path in found if path.is_file())


def hidden_states(model: CausalLM, token_ids: NDArray[np.int32], ops: Ops) -> NDArray[np.float32]:
    """Return the final hidden state of every position of one prompt, [T, H]."""
    count = len(token_ids)
    num_blocks = -(-count // _BLOCK_SIZE)
    positions = np.arange(count, dtype=np.int32)
    caches, metadata = {}, {}
    for name, spec in model.kv_cache_specs(_BLOCK_SIZE, "float32").items():
        caches[name] = np.zeros((num_blocks + 1, 2, spec.num_kv_heads, _BLOCK_SIZE, spec.head_dim), np.float32)
        metadata[name] = AttentionMetadata(
            query_start=np.array([0, count], np.int32),
            seq_lens=np.array([count], np.int32),
            block_table=np.arange(1, num_blocks + 1, dtype=np.int32)[None],
            slot_mapping=positions.astype(np.int64) + _BLOCK_SIZE,
        )
    return model.forward(token_ids, positions, ForwardContext(ops, caches, metadata))


def compare(models: list[CausalLM], token_ids: NDArray[np.int32], ops: Ops) -> NDArray[np.float64]:
    """Return per position: KL divergence, exact and rounded log-probability of the next token, same likeliest token."""
    hidden = [hidden_states(model, token_ids, ops) for model in models]
    rows: list[tuple[float, float, float, float]] = []
    for start in range(0, len(token_ids), _LOGIT_ROWS):
        exact, rounded = (
            ops.log_softmax(model.compute_logits(states[start : start + _LOGIT_ROWS], ops))
            for model, states in zip(models, hidden, strict=True)
        )
        rows += _row_figures(exact, rounded, token_ids[start + 1 : start + 1 + _LOGIT_ROWS])
    return np.array(rows)


def _row_figures(
    exact: NDArray[np.float32], rounded: NDArray[np.float32], targets: NDArray[np.int32]
) -> Iterator[tuple[float, float, float, float]]:
    for row, target in enumerate(targets):
        p, q = exact[row].astype(np.float64), rounded[row].astype(np.float64)
        divergence = float((np.exp(p) * (p - q)).sum())
        yield divergence, float(p[target]), float(q[target]), float(p.argmax() == q.argmax())


def report(figures: NDArray[np.float64]) -> None:
    divergence, exact, rounded, same = figures.T
    print(f"positions {len(figures)}")
    print(
        f"KL divergence: mean {divergence.mean():.5f}, 99th percentile {np.quantile(divergence, 0.99):.5f}, "
        f"largest {divergence.max():.5f}"
    )
    print(f"perplexity: exact {np.exp(-exact.mean()):.4f}, ratio {np.exp(exact.mean() - rounded.mean()):.5f}")
    print(f"same likeliest token: {100 * same.mean():.2f} %")


if __name__ == "__main__":
    main()
