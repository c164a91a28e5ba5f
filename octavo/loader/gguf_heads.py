"""Heads of rerankers and classifiers in GGUF files: which of them the file says all of, and their labels."""

from __future__ import annotations

from typing import Any

from octavo.errors import CheckpointError
from octavo.loader.gguf_file import GGUFFile


def has_roberta_head(file: GGUFFile) -> bool:
    """Say whether there are two layers of a head, and token types, which DistilBERT has not."""
    names = ("cls.weight", "cls.output.weight", "token_types.weight")
    return file.architecture == "bert" and all(name in file.tensors for name in names)


def roberta_head(file: GGUFFile) -> dict[str, Any]:
    """Return what a config with RoBERTa's head says beyond BERT's."""
    num_labels = file.tensors["cls.output.weight"].shape[0]
    labels = file.strings("bert.classifier.output_labels") or [f"LABEL_{index}" for index in range(num_labels)]
    if len(labels) != num_labels:
        raise CheckpointError(f"{file.path} names {len(labels)} labels, but its head gives {num_labels}")
    return {
        "architectures": ["RobertaForSequenceClassification"],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "pad_token_id": -1,  # the position table begins with the first position
    }
