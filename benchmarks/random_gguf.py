#!/usr/bin/env python3
"""Write a Llama-shaped GGUF file of random weights, to compare engines on sizes for which no checkpoint is at hand.

usage: random_gguf.py OUT.gguf [--shape 0.5b|1.5b] [--type Q4_0]

The tokenizer is a list of made-up tokens: give the engines token ids. Embedding and head are one matrix, in Q8_0.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import gguf
import numpy as np


@dataclass(frozen=True)
class Shape:
    """Sizes as Qwen2 has them at this number of weights."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "0.5b": Shape(hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocabulary=65536),
    "1.5b": Shape(hidden=1536, intermediate=8960, layers=28, heads=12, kv_heads=2, vocabulary=65536),
}


def write(path: str, shape: Shape, weight_type: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("llama")
    special = ["<unk>", "<s>", "</s>"]
    tokens = special + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    tokens += [f"w{number}" for number in range(shape.vocabulary - len(tokens))]
    types += [gguf.TokenType.NORMAL] * (shape.vocabulary - len(types))
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(number) for number in range(shape.vocabulary)])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    add_tensors(writer, shape, gguf.GGMLQuantizationType[weight_type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def add_tensors(writer: gguf.GGUFWriter, shape: Shape, weight_type: gguf.GGMLQuantizationType) -> None:
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int, tensor_type: gguf.GGMLQuantizationType) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
        writer.add_tensor(name, gguf.quants.quantize(values, tensor_type), raw_dtype=tensor_type)

    head_dim = shape.hidden // shape.heads
    ones = np.ones(shape.hidden, dtype=np.float32)
    matrix("token_embd.weight", shape.vocabulary, shape.hidden, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        writer.add_tensor(prefix + "attn_norm.weight", ones)
        writer.add_tensor(prefix + "ffn_norm.weight", ones)
        for name, rows, columns in (
            ("attn_q", shape.hidden, shape.hidden),
            ("attn_k", shape.kv_heads * head_dim, shape.hidden),
            ("attn_v", shape.kv_heads * head_dim, shape.hidden),
            ("attn_output", shape.hidden, shape.hidden),
            ("ffn_gate", shape.intermediate, shape.hidden),
            ("ffn_up", shape.intermediate, shape.hidden),
            ("ffn_down", shape.hidden, shape.intermediate),
        ):
            matrix(f"{prefix}{name}.weight", rows, columns, weight_type)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.5b")
    parser.add_argument("--type", default="Q4_0", help="GGUF type of all but the embedding")
    args = parser.parse_args()
    write(args.out, SHAPES[args.shape], args.type)


if __name__ == "__main__":
    main()
