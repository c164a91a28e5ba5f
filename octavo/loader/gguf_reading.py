"""Sizes and numbers from a GGUF file's metadata, checked."""

from __future__ import annotations

from octavo.errors import CheckpointError, UnsupportedError
from octavo.loader.gguf_file import GGUFFile


def attention_heads(file: GGUFFile) -> tuple[int, int]:
    """Return the numbers of query heads and of key/value heads."""
    num_query_heads = size(file, "attention.head_count")
    return num_query_heads, size(file, "attention.head_count_kv", num_query_heads)


def size(file: GGUFFile, key: str, default: int | None = None) -> int:
    """Return a size of the model, at least 1; a per-layer array counts if all layers agree."""
    key = f"{file.architecture}.{key}"
    value = file.metadata.get(key, default)
    numbers = file.numbers(key) if not isinstance(value, (int, type(None))) else None
    if numbers is not None:
        if len(set(numbers.tolist())) != 1:
            raise UnsupportedError(f"{file.path}: metadata {key!r} differs from layer to layer, which is not supported")
        value = numbers.tolist()[0]
    if value is None:
        raise CheckpointError(f"{file.path}: metadata has no {key!r}, which this model needs")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{file.path}: metadata {key!r} must be a positive integer, got {value!r}")
    return value


def layer_count(file: GGUFFile) -> int:
    """Return the number of layers, no more than the file can have: lists of that length are made of it."""
    num_layers = size(file, "block_count")
    if num_layers > len(file.tensors):
        raise CheckpointError(
            f"{file.path} says it has {num_layers} layers, but holds only {len(file.tensors)} tensors"
        )
    return num_layers


def number(file: GGUFFile, key: str, default: float) -> float:
    value = file.get(f"{file.architecture}.{key}", float)
    return default if value is None else value


def head_dim(file: GGUFFile) -> int:
    num_query_heads, _ = attention_heads(file)
    key_dim = size(file, "attention.key_length", max(1, size(file, "embedding_length") // num_query_heads))
    value_dim = size(file, "attention.value_length", key_dim)
    if key_dim != value_dim:
        raise UnsupportedError(f"{file.path}: keys of {key_dim} and values of {value_dim} per head; they must be equal")
    return key_dim


def vocab_size(file: GGUFFile) -> int:
    """Return the rows of the embedding: files may have more rows than tokens, and logits are as wide as the rows."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{file.path} has no tensor 'token_embd.weight'")
    return embedding.shape[0]


def layer_types(file: GGUFFile, num_layers: int, default_period: int) -> list[str]:
    """Return sliding_attention or full_attention per layer; a period p makes every p-th layer full."""
    key = f"{file.architecture}.attention.sliding_window_pattern"
    pattern = file.metadata.get(key)
    if pattern is None or isinstance(pattern, int):
        period = size(file, "attention.sliding_window_pattern", default_period)
        is_sliding = [(layer + 1) % period != 0 for layer in range(num_layers)]
    else:
        numbers = file.numbers(key)
        is_sliding = [] if numbers is None else [bool(item) for item in numbers.tolist()]
        if len(is_sliding) != num_layers:
            raise CheckpointError(f"{file.path}: {key!r} has {len(is_sliding)} entries for {num_layers} layers")
    return ["sliding_attention" if sliding else "full_attention" for sliding in is_sliding]
