"""Weights that guess, in the layouts in which they are published, and what they must guess, in PyTorch by itself.

The formulas are those of the published code, written anew: every position computed from all before it, no cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu, softmax
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from tests.tiny_models import VOCAB_SIZE, write_tiny_model

HEADS, KV_HEADS, HEAD_DIM, INNER, EPS, THETA = 4, 2, 16, 48, 1e-6, 10_000.0
DRAFT_VOCAB = 200
Guess = Callable[[Sequence[int], int], list[int]]  # known tokens, how many -> guesses


def write_weights(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return str(folder)


def draft_config(hidden_size: int, **changes: Any) -> dict[str, Any]:
    """A Llama layer such as EAGLE's; its positions are fewer than the model's, which must not matter."""
    sizes = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden_size, "head_dim": HEAD_DIM,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "rms_norm_eps": EPS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 64, "hidden_act": "silu",
        "rope_theta": THETA,
    }  # fmt: skip
    return {**sizes, **changes}


def random_layer(size: int, prefix: str, in_size: int, norms: Sequence[str], bias: bool = False) -> dict[str, Tensor]:
    """Projections of a layer, queries and the like from in_size features."""
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, in_size),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, in_size),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, in_size),
        "self_attn.o_proj": (size, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, size),
        "mlp.up_proj": (INNER, size),
        "mlp.down_proj": (size, INNER),
    }
    tensors = {f"{prefix}{name}.weight": random_matrix(*shape) for name, shape in shapes.items()}
    if bias:
        for name in ("q", "k", "v"):
            key = f"{prefix}self_attn.{name}_proj"
            tensors[f"{key}.bias"] = 0.3 * torch.randn(len(tensors[f"{key}.weight"]))
    return tensors | {f"{prefix}{name}.weight": 1 + 0.2 * torch.randn(size) for name in norms}


def random_matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) * columns**-0.5


# -- formulas ----------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def attention(x: Tensor, tensors: dict[str, Tensor], prefix: str) -> Tensor:
    """x: [T, I], at positions 0 and on."""
    query, key, value = (
        (x @ tensors[f"{prefix}{name}_proj.weight"].T + tensors.get(f"{prefix}{name}_proj.bias", 0.0)).view(
            len(x), -1, HEAD_DIM
        )
        for name in ("q", "k", "v")
    )
    angles = torch.arange(len(x))[:, None] * THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = (torch.cat([wave, wave], -1)[:, None] for wave in (angles.cos(), angles.sin()))
    query, key = (
        part * cos + torch.cat([-part[..., HEAD_DIM // 2 :], part[..., : HEAD_DIM // 2]], -1) * sin
        for part in (query, key)
    )
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * HEAD_DIM**-0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf)
    attended = torch.einsum("hqk,khd->qhd", softmax(scores, -1), value).reshape(len(x), -1)
    return attended @ tensors[f"{prefix}o_proj.weight"].T


def mlp(x: Tensor, tensors: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up, down = (tensors[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def rest_of_layer(x: Tensor, normed: Tensor, tensors: dict[str, Tensor], prefix: str) -> Tensor:
    x = x + attention(normed, tensors, f"{prefix}self_attn.")
    return x + mlp(rms_norm(x, tensors[f"{prefix}post_attention_layernorm.weight"]), tensors, prefix)


class Target:
    """The model's states and tables, by Transformers."""

    def __init__(self, folder: str) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.embedding = self.model.get_input_embeddings().weight.detach()
        self.lm_head = self.model.get_output_embeddings().weight.detach()

    def states(self, token_ids: Sequence[int]) -> list[Tensor]:
        """What enters each layer, what leaves the last one, and what the final norm gives, each [T, H]."""
        leaving = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda module, inputs: leaving.append(inputs[0][0]))
        with torch.no_grad():
            output = self.model(torch.tensor([list(token_ids)]), output_hidden_states=True, use_cache=False)
        hook.remove()
        states = [state[0] for state in output.hidden_states]
        return [*states[:-1], leaving[0], states[-1]]


def chain(step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], states: Tensor, known: Sequence[int], count: int):
    """Guess token by token. step(next tokens [T], states [T, H]) -> (logits, states) of all; the last states go on."""
    tokens, guesses = list(known[1:]), []
    for _ in range(count):
        logits, own = step(torch.tensor(tokens), states)
        guesses.append(int(logits[-1].argmax()))
        tokens.append(guesses[-1])
        states = torch.cat([states, own[-1:]])
    return guesses


# -- methods: write random weights, return their folder and what they must guess ---------------------------------------


def medusa(folder: Path, target: Target, published: bool, num_layers: int = 2) -> tuple[str, Guess]:
    size = target.embedding.shape[1]
    tensors, heads = {}, []
    for head in range(3):
        names = [
            f"{head}.{layer}.linear" if published else f"blocks.{head}.layers.{layer}" for layer in range(num_layers)
        ]
        last = f"{head}.{num_layers}" if published else f"lm_heads.{head}"
        root = "" if published else "medusa_heads."
        for name in names:
            tensors[f"{root}{name}.weight"] = random_matrix(size, size)
            tensors[f"{root}{name}.bias"] = 0.3 * torch.randn(size)
        tensors[f"{root}{last}.weight"] = random_matrix(VOCAB_SIZE if published else DRAFT_VOCAB, size)
        heads.append(([root + name for name in names], root + last))
    token_map = torch.arange(VOCAB_SIZE)
    config: dict[str, Any] = {"medusa_num_heads": 3, "medusa_num_layers": num_layers}
    if not published:
        token_map = tensors["token_map"] = torch.randperm(VOCAB_SIZE)[:DRAFT_VOCAB]
        config = {"model_type": "medusa", "num_heads": 3, "num_hidden_layers": num_layers, "hidden_size": size,
                  "vocab_size": VOCAB_SIZE, "truncated_vocab_size": DRAFT_VOCAB}  # fmt: skip

    def guess(known: Sequence[int], count: int) -> list[int]:
        state, guesses = target.states(known[:-1])[-1][-1], []
        for names, last in heads[:count]:
            x = state
            for name in names:
                x = x + silu(x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
            guesses.append(int(token_map[(x @ tensors[f"{last}.weight"].T).argmax()]))
        return guesses

    return write_weights(folder, config, tensors), guess


def eagle(folder: Path, target: Target) -> tuple[str, Guess]:
    """Two layers and a bias, as the published code allows; it carries a copy of the embedding, as published ones do."""
    size = target.embedding.shape[1]
    tensors = {"fc.weight": random_matrix(size, 2 * size), "fc.bias": 0.3 * torch.randn(size)}
    tensors |= random_layer(size, "layers.0.", size, ["post_attention_layernorm"])
    tensors |= random_layer(size, "layers.1.", size, ["input_layernorm", "post_attention_layernorm"])

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([target.embedding[tokens], states], -1) @ tensors["fc.weight"].T + tensors["fc.bias"]
        x = rest_of_layer(x, x, tensors, "layers.0.")
        x = rest_of_layer(x, rms_norm(x, tensors["layers.1.input_layernorm.weight"]), tensors, "layers.1.")
        return x @ target.lm_head.T, x

    path = write_weights(
        folder, draft_config(size, num_hidden_layers=2), {**tensors, "embed_tokens.weight": target.embedding}
    )
    return path, lambda known, count: chain(step, target.states(known[:-1])[-1], known, count)


def eagle3(folder: Path, target: Target, own_sizes: bool, layer_ids: Sequence[int] | None) -> tuple[str, Guess]:
    """own_sizes: a hidden size, an embedding and a vocabulary of its own. layer_ids: None: vLLM's default"""
    target_size = target.embedding.shape[1]
    size, vocab_size = (40, DRAFT_VOCAB) if own_sizes else (target_size, VOCAB_SIZE)
    tensors = random_layer(size, "midlayer.", 2 * size, ["input_layernorm", "hidden_norm", "post_attention_layernorm"])
    tensors["fc.weight"] = random_matrix(size, 3 * target_size)
    tensors["norm.weight"] = 1 + 0.2 * torch.randn(size)
    config = draft_config(size, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=vocab_size)
    embedding, lm_head, token_ids = target.embedding, target.lm_head, torch.arange(VOCAB_SIZE)
    if own_sizes:
        embedding = tensors["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, size)
        lm_head = tensors["lm_head.weight"] = random_matrix(vocab_size, size)
        token_ids = torch.randperm(VOCAB_SIZE)[:vocab_size].sort().values
        tensors["d2t"] = token_ids - torch.arange(vocab_size)
        tensors["t2d"] = torch.isin(torch.arange(VOCAB_SIZE), token_ids)
        config |= {"target_hidden_size": target_size, "norm_before_residual": True}
    if layer_ids is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(layer_ids)
    num_layers = target.model.config.num_hidden_layers
    tapped = sorted(layer_ids or (2, num_layers // 2, num_layers - 3))

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = rms_norm(embedding[tokens], tensors["midlayer.input_layernorm.weight"])
        normed = rms_norm(states, tensors["midlayer.hidden_norm.weight"])
        both = torch.cat([embedded, normed], -1)
        x = rest_of_layer(normed if own_sizes else states, both, tensors, "midlayer.")
        logits = torch.full((len(x), VOCAB_SIZE), -torch.inf)
        logits[:, token_ids] = rms_norm(x, tensors["norm.weight"]) @ lm_head.T
        return logits, x

    def guess(known: Sequence[int], count: int) -> list[int]:
        states = target.states(known[:-1])
        fused = torch.cat([states[layer] for layer in tapped], -1) @ tensors["fc.weight"].T
        return chain(step, fused, known, count)

    return write_weights(folder, config, tensors), guess


def write_mimo(folder: Path) -> tuple[str, Guess]:
    """Write a MiMo model, whose MTP layer lies beside its own."""
    sizes = dict(hidden_size=64, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS,
                 num_key_value_heads=KV_HEADS, vocab_size=VOCAB_SIZE, max_position_embeddings=512,
                 rms_norm_eps=EPS, eos_token_id=0, bos_token_id=0, tie_word_embeddings=False)  # fmt: skip
    write_tiny_model(folder, Qwen2Config(**sizes), seed=5)
    target, prefix, size = Target(str(folder)), "model.mtp_layers.0.", 64
    tensors = random_layer(size, prefix, size, ["input_layernorm", "post_attention_layernorm"], bias=True)
    tensors[f"{prefix}input_proj.weight"] = random_matrix(size, 2 * size)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{prefix}{name}.weight"] = 1 + 0.2 * torch.randn(size)

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        embedded = target.embedding[tokens].clone()
        embedded[0] = 0
        embedded = rms_norm(embedded, tensors[f"{prefix}token_layernorm.weight"])
        states = rms_norm(states, tensors[f"{prefix}hidden_layernorm.weight"])
        x = torch.cat([states, embedded], -1) @ tensors[f"{prefix}input_proj.weight"].T
        x = rest_of_layer(x, rms_norm(x, tensors[f"{prefix}input_layernorm.weight"]), tensors, prefix)
        x = rms_norm(x, tensors[f"{prefix}final_layernorm.weight"])
        return x @ target.lm_head.T, x

    whole = {**target.model.state_dict(), **tensors}
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    path = write_weights(folder, config, whole)
    return path, lambda known, count: chain(step, target.states(known[:-1])[-2], known, count)


def numpy_solve(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the matrix that makes outputs of inputs, line by line."""
    return torch.from_numpy(np.linalg.solve(inputs.double().numpy(), outputs.double().numpy()).T.copy()).float()
