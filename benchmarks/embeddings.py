#!/usr/bin/env python3
"""Embeddings of texts of mixed lengths: Octavo beside sentence-transformers and llama.cpp's embedding server.

usage: embeddings.py [--model all-minilm-l6-v2] [--texts 300] [--rounds 3] [--llama-server PATH]

Contenders take turns, round by round, on the same texts; each figure is the best round's. sentence-transformers is used
where it can be imported (float32, as many threads), llama-server where its path is given, with the same weights.
Over HTTP both servers get the same requests of 32 texts, four at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from served import serving

from octavo import LLM
from octavo.loader import catalog
from octavo.platforms.cpu import usable_cores

TEXTS_PER_REQUEST, REQUESTS_AT_A_TIME = 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-server", type=Path, default=None)
    parser.add_argument("--without-http", action="store_true")
    args = parser.parse_args()
    folder = catalog.pull(args.model)
    llm = LLM(args.model)
    texts = mixed_texts(args.texts)
    outputs = llm.embed(texts, use_tqdm=False)
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    print(f"{len(texts)} texts, {num_tokens} tokens, {usable_cores()} threads")
    contenders: dict[str, Callable[[], object]] = {"octavo": lambda: llm.embed(texts, use_tqdm=False)}
    reference = sentence_transformers(folder)
    if reference is not None:
        contenders["sentence-transformers"] = lambda: reference.encode(texts, batch_size=32)
        ours = np.array([output.outputs.embedding for output in outputs])
        print(f"least cosine with sentence-transformers: {(ours * reference.encode(texts)).sum(axis=1).min():.7f}")
    report(contenders, args.rounds, num_tokens)
    if not args.without_http:
        compare_servers(args, folder, texts, num_tokens)


def mixed_texts(count: int) -> list[str]:
    """Return texts of 1 to about 250 tokens; half of them short, as queries are."""
    rng = random.Random(0)
    words = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    lengths = [rng.randint(1, 16) if index % 2 else rng.randint(16, 160) for index in range(count)]
    return [" ".join(rng.choice(words) for _ in range(length)) for length in lengths]


def sentence_transformers(folder: Path) -> Any:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return None
    torch.set_num_threads(usable_cores())
    return SentenceTransformer(str(folder), device="cpu")


def report(contenders: dict[str, Callable[[], object]], rounds: int, num_tokens: int) -> None:
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - started)
    for name, seconds in best.items():
        times = seconds / best["octavo"]
        print(f"{name:24} {seconds:7.3f} s  {num_tokens / seconds:9.0f} tokens/s  {times:5.2f} times octavo's")


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def compare_servers(args: argparse.Namespace, folder: Path, texts: list[str], num_tokens: int) -> None:
    with contextlib.ExitStack() as stack:
        urls = {"octavo": stack.enter_context(serving(args.model)).url}
        if args.llama_server is not None:
            urls["llama-server"] = stack.enter_context(llama_serving(args.llama_server, folder))
        vectors = {name: asyncio.run(embed_over_http(url, texts)) for name, url in urls.items()}
        if "llama-server" in vectors:
            cosines = (vectors["octavo"] * vectors["llama-server"]).sum(axis=1)
            print(f"least cosine with llama-server: {cosines.min():.5f}, median {np.median(cosines):.7f}")
        report(
            {name: (lambda url=url: asyncio.run(embed_over_http(url, texts))) for name, url in urls.items()},
            args.rounds,
            num_tokens,
        )


async def embed_over_http(url: str, texts: list[str]) -> Any:
    """Return the embeddings [texts, dimensions], normalised."""
    batches = [texts[start : start + TEXTS_PER_REQUEST] for start in range(0, len(texts), TEXTS_PER_REQUEST)]
    places = asyncio.Semaphore(REQUESTS_AT_A_TIME)

    async def embed(batch: list[str]) -> list[list[float]]:
        async with places:
            body = json.dumps({"input": batch, "model": ""}).encode()
            answer = await asyncio.to_thread(_post, f"{url}/v1/embeddings", body)
        return [item["embedding"] for item in sorted(answer["data"], key=lambda item: item["index"])]

    vectors = np.array([vector for part in await asyncio.gather(*map(embed, batches)) for vector in part])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _post(url: str, body: bytes) -> Any:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


@contextlib.contextmanager
def llama_serving(program: Path, folder: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        model, port = Path(name) / "model.gguf", 8371
        write_bert_gguf(folder, model)
        command = [str(program), "-m", str(model), "--embeddings", "--pooling", "mean", "--port", str(port)]
        command += ["-t", str(usable_cores()), "-ub", "2048", "-b", "2048", "-c", "8192", "-np", "32", "-kvu"]
        environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{url}/health", timeout=5).read()
                    break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()


def write_bert_gguf(folder: Path, path: Path) -> None:
    """Write a BERT folder as llama.cpp reads it: float32, WordPiece tokens with U+2581 before words."""
    import gguf

    from octavo.loader.safetensors_weights import SafetensorsWeights

    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(config["type_vocab_size"])
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = [token.startswith("[") and token.endswith("]") for token in tokens]
    writer.add_token_list(
        [
            token if is_special else token[2:] if token.startswith("##") else "\u2581" + token
            for token, is_special in zip(tokens, special, strict=True)
        ]
    )
    writer.add_token_types([3 if is_special else 1 for is_special in special])
    for role, token in (("bos", "[CLS]"), ("eos", "[SEP]"), ("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]")):
        getattr(writer, f"add_{role}_token_id")(vocabulary[token])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    weights = SafetensorsWeights(folder)
    for name, tensor in weights._tensors.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is not None and "pooler" not in name:
            writer.add_tensor(target, np.array(tensor.float32()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
