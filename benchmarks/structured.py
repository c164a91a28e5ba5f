"""What structured outputs cost: throughput, a new schema's own first token, and others' tokens during attacks.

    python benchmarks/structured.py [--model smollm2-135m-instruct] [--requests 16] [--tokens 96] [--rounds 5]
    python benchmarks/structured.py --first-grammars   # only what an engine's very first grammar does to others

Prints three tables. Throughputs come from interleaved runs of the same length (medians); every answer has the same
number of tokens, whatever it says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.config import EngineArgs
from octavo.engine.async_llm import AsyncLLM
from octavo.engine.grammars import warm_up_grammars
from octavo.errors import OctavoError
from octavo.types.sampling_params import RequestOutputKind

PROMPT = "List people with their names, ages, addresses and hobbies as JSON."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z]{1,20}@[a-z]{1,20}\\.(com|org)$"},
        "role": {"enum": ["admin", "editor", "viewer"]},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "hobbies": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "age", "role", "address"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 1000}
ATTACKS = {
    "catastrophic regex": StructuredOutputsParams(regex="(a+)+b"),
    "nested repetition": StructuredOutputsParams(regex="(x{1,1000}){1,1000}"),
    "64 kB regex": StructuredOutputsParams(regex="x" * 65_000),
    "automaton of 2^200 states": StructuredOutputsParams(json={"type": "string", "pattern": "^(a|b)*a(a|b){200}$"}),
    "2^12 objects": None,  # made below
    "ambiguous grammar": StructuredOutputsParams(grammar='start: a\na: a a | "x" | ""'),
    "masks of 200 ms": StructuredOutputsParams(grammar="start: a\na: a a | /[a-z ]/"),
    "sudden masks of 200 ms": StructuredOutputsParams(grammar='start: a\na: a a | "x" | "Y" l\nl: l? /[a-z ]/'),
    "first mask of 1 s": StructuredOutputsParams(grammar="root ::= " + '("a" | "b")*' * 3000),
    "huge grammar": StructuredOutputsParams(grammar="root ::= " + '("a" | "b")*' * 4000),
    "crash of the library": StructuredOutputsParams(grammar='start: %json {"const": -9223372036854775808}'),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5, help="0: latencies only")
    parser.add_argument("--attack-rounds", type=int, default=3)
    parser.add_argument("--speculation", help="a method that drafts, e.g. ngram, while grammars attack")
    parser.add_argument("--first-grammars", action="store_true", help="engines that have seen no grammar, one a try")
    args = parser.parse_args()
    if args.first_grammars:
        asyncio.run(measure_first_grammars(args.model, args.attack_rounds))
        return
    if args.rounds:
        measure_throughput(args.model, args.requests, args.tokens, args.rounds)
    asyncio.run(measure_latencies(args.model, args.attack_rounds, args.speculation))


# -- throughput --------------------------------------------------------------------------------------------------------


def measure_throughput(model: str, num_requests: int, num_tokens: int, num_rounds: int) -> None:
    """Compare constrained with unconstrained requests, all of them running at the same time."""
    llm = LLM(model, max_num_seqs=num_requests, max_model_len=1024, use_tqdm_on_load=False)
    kinds = {
        "unconstrained": None,
        "JSON schema": StructuredOutputsParams(json=PEOPLE),
        "JSON schema, white space": StructuredOutputsParams(json=PEOPLE, disable_any_whitespace=False),
        "regex": StructuredOutputsParams(regex=r"([A-Z][a-z]{2,12} ){500,}"),
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for round_ in range(num_rounds + 1):
        for name, wish in kinds.items():
            rate = _tokens_per_second(llm, wish, num_requests, num_tokens)
            if round_:  # the first one warms up
                rates[name].append(rate)
    llm.llm_engine.shutdown()
    base = statistics.median(rates["unconstrained"])
    title = f"{num_requests} requests of {num_tokens} tokens at a time, {model}"
    print(f"\n{title}: tokens per second (median of {num_rounds})")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:26s} {median:8.1f}   {100 * median / base:5.1f} %")


def _tokens_per_second(llm: LLM, wish: StructuredOutputsParams | None, num_requests: int, num_tokens: int) -> float:
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=num_tokens, min_tokens=num_tokens, structured_outputs=wish)
        for i in range(num_requests)
    ]
    begin = time.perf_counter()
    outputs = llm.generate([f"{PROMPT} {i}" for i in range(num_requests)], params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    assert lengths == {num_tokens}, f"answers of {lengths} tokens cannot be compared"
    return num_requests * num_tokens / seconds


# -- latencies ---------------------------------------------------------------------------------------------------------


async def measure_latencies(model: str, num_rounds: int, speculation: str | None) -> None:
    """Measure a new schema's own first token, and a running stream while grammars attack."""
    drafts = None if speculation is None else {"method": speculation, "num_speculative_tokens": 6}
    engine = AsyncLLM.from_engine_args(
        EngineArgs(model=model, max_model_len=1024, use_tqdm_on_load=False, speculative_config=drafts)
    )
    try:
        await warm_up_grammars(engine)
        await _first_token_ms(engine, StructuredOutputsParams(regex="warm"))
        await _measure_first_tokens(engine)
        await _measure_attacks(engine, num_rounds)
    finally:
        engine.shutdown()


async def _measure_first_tokens(engine: AsyncLLM) -> None:
    plain, new, known = [], [], []
    for i in range(20):
        schema = {**PERSON, "properties": {**PERSON["properties"], f"extra{i}": {"type": "number"}}}  # type: ignore[dict-item]
        plain.append(await _first_token_ms(engine, None))
        new.append(await _first_token_ms(engine, StructuredOutputsParams(json=schema)))
        known.append(await _first_token_ms(engine, StructuredOutputsParams(json=schema)))
    print("\nfirst token of a request alone, ms: median (largest) of 20")
    for name, values in (("without a schema", plain), ("with a new schema", new), ("with a known schema", known)):
        print(f"  {name:26s} {statistics.median(values):6.1f} ({max(values):.1f})")


async def _first_token_ms(engine: AsyncLLM, wish: StructuredOutputsParams | None) -> float:
    params = SamplingParams(max_tokens=1, structured_outputs=wish, skip_reading_prefix_cache=True)
    begin = time.perf_counter()
    async for _ in engine.generate(PROMPT, params, "first"):
        break
    return 1e3 * (time.perf_counter() - begin)


async def _measure_attacks(engine: AsyncLLM, num_rounds: int) -> None:
    """Say how much longer than a step tokens of others take.

    A step is what a newcomer of the same kind, but without a grammar, makes others wait for: it includes its prompt.
    """
    schema: dict[str, object] = {}
    for _ in range(12):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}}
    attacks: dict[str, StructuredOutputsParams | bool | None] = {
        "alone": False,
        "beside plain newcomers": None,
        "beside a harmless grammar": StructuredOutputsParams(regex="[a-z ]{50,}"),
        **ATTACKS,
        "2^12 objects": StructuredOutputsParams(json=schema),
    }
    gaps: dict[str, list[list[float]]] = {name: [] for name in attacks}
    for _ in range(num_rounds):
        for name, wish in attacks.items():
            gaps[name].append(sorted(await _gaps_ms(engine, wish)))
            await asyncio.sleep(0.3)  # what compilers still have to end
    step = statistics.median(one[-1] for one in gaps["beside plain newcomers"])
    print(
        "\ntime between two tokens of 4 plain requests, ms: medians of the rounds' medians, 99 % and largest, and the"
    )
    print(
        f"largest in the first round, where grammars are new; in steps of {step:.1f} ms, the longest beside newcomers"
    )
    for name, rounds in gaps.items():
        median, most, largest = (
            statistics.median(one[int(share * (len(one) - 1))] for one in rounds) for share in (0.5, 0.99, 1)
        )
        in_steps = f"{largest / step:4.1f} ({rounds[0][-1] / step:.1f}) steps"
        print(f"  {name:26s} {median:6.1f} / {most:6.1f} / {largest:6.1f} ({rounds[0][-1]:.1f})   {in_steps}")


async def measure_first_grammars(model: str, num_rounds: int) -> None:
    """Measure a running stream while an engine without any warm-up gets its first grammar."""
    kinds: dict[str, StructuredOutputsParams | None] = {
        "plain newcomers": None,
        "a schema": StructuredOutputsParams(json=PERSON),
        **{name: ATTACKS[name] for name in ("masks of 200 ms", "first mask of 1 s", "huge grammar")},
    }
    gaps: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for _ in range(num_rounds):
        for name, wish in kinds.items():
            engine = AsyncLLM.from_engine_args(EngineArgs(model=model, max_model_len=1024, use_tqdm_on_load=False))
            try:
                await _gaps_ms(engine, False)  # what a first plain request costs is no matter here
                gaps[name].append(sorted(await _gaps_ms(engine, wish)))
            finally:
                engine.shutdown()
    print("\nlargest times between two tokens of 4 plain requests while the engine's first grammar comes, ms, by round")
    for name, rounds in gaps.items():
        median = statistics.median(one[len(one) // 2] for one in rounds)
        print(f"  {name:20s} median {median:4.1f}   " + "  ".join(f"{one[-1]:5.1f}" for one in rounds))


async def _gaps_ms(engine: AsyncLLM, attack: StructuredOutputsParams | bool | None) -> list[float]:
    """Return the gaps of 4 streams of 160 tokens; 20 tokens in, 2 requests arrive, unless `attack` is False."""
    gaps: list[float] = []
    begun = asyncio.Event()

    async def stream(index: int) -> None:
        params = SamplingParams(
            temperature=1.0, seed=index, max_tokens=160, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        last, count = None, 0
        async for _ in engine.generate(f"{PROMPT} {index}", params, f"plain-{index}"):
            now = time.perf_counter()
            if last is not None and count > 20:
                gaps.append(1e3 * (now - last))
            last, count = now, count + 1
            if count == 20:
                begun.set()

    async def strike(index: int, wish: StructuredOutputsParams | None) -> None:
        await begun.wait()
        params = SamplingParams(temperature=1.0, seed=index, max_tokens=200, structured_outputs=wish)
        with contextlib.suppress(OctavoError):  # refused
            async for _ in engine.generate(f"{PROMPT} {index}", params, f"attack-{index}"):
                pass

    strikes = []
    if not isinstance(attack, bool):
        strikes = [asyncio.create_task(strike(index, attack)) for index in range(2)]
    await asyncio.gather(*(stream(index) for index in range(4)))
    for task in strikes:
        task.cancel()
    await asyncio.gather(*strikes, return_exceptions=True)
    return gaps


if __name__ == "__main__":
    main()
