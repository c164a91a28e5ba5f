"""Measure a server with OpenAI's API: time to first token, time per token, throughput, at a given load.

The server runs already: Octavo, vLLM, llama-server or another. Prompts are the same for the same --seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo import envs
from octavo.entrypoints.bench.dataset_arguments import add_dataset_arguments, dataset_options
from octavo.entrypoints.bench.offline import check_result_file
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.entrypoints.bench.serving_report import ServingRun
    from octavo.entrypoints.bench.serving_run import MeasuredLoad

USAGE = "octavo bench serve [options]"
_BACKENDS = ("openai", "openai-chat", "vllm", "octavo")
_METRICS = ("ttft", "tpot", "itl", "e2el")
_SAMPLING = (("temperature", float), ("top-p", float), ("top-k", int), ("min-p", float))
_PENALTIES = (("frequency-penalty", float), ("presence-penalty", float), ("repetition-penalty", float))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_server_arguments(parser)
    _add_load_arguments(parser)
    add_dataset_arguments(parser, default="random")
    _add_request_arguments(parser)
    _add_result_arguments(parser)


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server", "what is measured")
    group.add_argument("--backend", choices=_BACKENDS, default="openai", help="kind of endpoint (default: openai)")
    group.add_argument("--base-url", metavar="URL", help="server, instead of --host and --port")
    group.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, help="(default: 8000)")
    group.add_argument("--endpoint", metavar="PATH", help="path, instead of the backend's own")
    group.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="sent with each request")
    group.add_argument("--insecure", action="store_true", help="accept any certificate")
    group.add_argument("--model", metavar="NAME", help="model (default: the first that the server lists)")
    group.add_argument("--served-model-name", metavar="NAME", help="its name in requests, if that is another")
    group.add_argument("--tokenizer", metavar="NAME", help="model whose tokenizer counts (default: the model's)")
    group.add_argument(
        "--ready-check-timeout-sec", type=float, default=0, metavar="S", help="wait so long for the server (default: 0)"
    )


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load", "when requests are sent")
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="X", help="per second (default: inf)"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1: Poisson; less: burstier; more: steadier"
    )
    group.add_argument("--max-concurrency", type=int, metavar="N", help="most requests at a time (default: no limit)")
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="let the rate grow")
    group.add_argument("--ramp-up-start-rps", type=float, default=0, metavar="X", help="rate at the start")
    group.add_argument("--ramp-up-end-rps", type=float, default=0, metavar="X", help="rate at the end")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests sent before (default: 0)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (default: 0)")


def _add_request_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("request", "what is not given is the server's choice")
    group.add_argument("--ignore-eos", action="store_true", help="generate all tokens, whatever the model says")
    for name, kind in (*_SAMPLING, *_PENALTIES):
        group.add_argument(f"--{name}", type=kind, metavar="X")
    group.add_argument("--logprobs", type=int, metavar="N", help="candidates per token")
    group.add_argument("--extra-body", type=_json_object, default={}, metavar="JSON", help="further fields")


def _add_result_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("result", "what is reported")
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl,e2el", metavar="NAMES", help="of ttft, tpot, itl, e2el"
    )
    group.add_argument("--metric-percentiles", default="99", metavar="LIST", help="such as 50,90,99 (default: 99)")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="goals, such as ttft:500 tpot:50")
    group.add_argument("--save-result", action="store_true", help="write a JSON file")
    group.add_argument("--save-detailed", action="store_true", help="with every request's times and text")
    group.add_argument("--append-result", action="store_true", help="as one more line of the file")
    group.add_argument("--result-dir", default=".", metavar="FOLDER")
    group.add_argument("--result-filename", metavar="NAME")
    group.add_argument("--label", metavar="TEXT", help="begins the file's name, instead of the backend")
    group.add_argument("--metadata", nargs="+", default=[], metavar="NAME=VALUE", help="noted in the file")
    group.add_argument("--plot-timeline", action="store_true", help="write an HTML page with a bar per request")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from octavo.entrypoints.bench.serving_metrics import parse_goodput, summarise
    from octavo.entrypoints.bench.serving_report import ServingRun, table

    goals_ms = parse_goodput(args.goodput)
    shown, percents = _shown_metrics(args.percentile_metrics), _percents(args.metric_percentiles)
    settings = _settings(args)
    if _wants_file(args) or args.plot_timeline:
        check_result_file(Path(args.result_dir) / (args.result_filename or "octavo-bench"))
    run_done = _measure(args)
    settings |= {
        "model_id": run_done.model,
        "tokenizer_id": run_done.tokenizer_name,
        "num_prompts": len(run_done.results),
    }
    metrics = summarise(run_done.results, run_done.duration_s, shown, percents, goals_ms)
    measured = ServingRun(metrics, run_done.results, args.request_rate, args.max_concurrency, settings)
    print(table(measured))
    for error in dict.fromkeys(result.error for result in run_done.results if result.error):
        print(f"octavo: a request failed: {error}", file=sys.stderr)
    _save(args, measured)
    return 0 if metrics.completed else 1


def _measure(args: argparse.Namespace) -> MeasuredLoad:
    from octavo.entrypoints.bench.load import LoadOptions
    from octavo.entrypoints.bench.serving_run import Target, measure
    from octavo.entrypoints.event_loop import run as run_in_loop

    load = LoadOptions(
        args.request_rate,
        args.burstiness,
        args.max_concurrency,
        args.seed,
        args.ramp_up_strategy,
        args.ramp_up_start_rps,
        args.ramp_up_end_rps,
    )
    target = Target(
        base_url=args.base_url or f"http://{args.host}:{args.port}",
        backend=args.backend,
        endpoint=args.endpoint,
        headers=_headers(args.header),
        verifies=not args.insecure,
        model=args.model,
        served_model_name=args.served_model_name,
        tokenizer=args.tokenizer,
        ready_timeout_s=args.ready_check_timeout_sec,
    )
    prompts = dataset_options(args, args.seed, skip_chat_template=args.backend == "openai-chat")
    fields = {**_extra_fields(args), **({"ignore_eos": True} if args.ignore_eos else {})}
    return run_in_loop(measure(target, prompts, load, fields, args.num_warmups, not args.disable_tqdm))


# -- options -----------------------------------------------------------------------------------------------------------


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    metadata = dict(_pair(text, "--metadata") for text in args.metadata)
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": args.backend,
        "label": args.label,
        "burstiness": args.burstiness,
        "seed": args.seed,
        "dataset_name": args.dataset_name,
        **metadata,
    }


def _extra_fields(args: argparse.Namespace) -> dict[str, Any]:
    names = [name.replace("-", "_") for name, _ in (*_SAMPLING, *_PENALTIES)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.logprobs is not None:
        is_chat = args.backend == "openai-chat"
        given |= {"logprobs": True, "top_logprobs": args.logprobs} if is_chat else {"logprobs": args.logprobs}
    return {**given, **args.extra_body}


def _headers(texts: Sequence[str]) -> dict[str, str]:
    keys = envs.api_keys()
    own = {"Authorization": f"Bearer {keys[0]}"} if any(keys) else {}
    return own | dict(_pair(text, "--header") for text in texts)


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise ConfigError(f"{flag} takes NAME=VALUE, got {text!r}")
    return name.strip(), value.strip()


def _shown_metrics(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = set(names) - set(_METRICS)
    if unknown:
        raise ConfigError(f"--percentile-metrics takes {', '.join(_METRICS)}; got {', '.join(sorted(unknown))}")
    return names


def _percents(text: str) -> list[float]:
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = [-1.0]
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles takes numbers from 0 to 100, separated by commas; got {text!r}")
    return percents


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


# -- files -------------------------------------------------------------------------------------------------------------


def _save(args: argparse.Namespace, measured: ServingRun) -> None:
    from octavo.entrypoints.bench.serving_report import as_record, page

    path = Path(args.result_dir) / (args.result_filename or _file_name(measured))
    if _wants_file(args):
        text = json.dumps(as_record(measured, args.save_detailed)) + "\n"
        with path.open("a" if args.append_result else "w", encoding="utf-8") as file:
            file.write(text)
    if args.plot_timeline:
        path.with_suffix(".timeline.html").write_text(page(measured), encoding="utf-8")


def _wants_file(args: argparse.Namespace) -> bool:
    return bool(args.save_result or args.save_detailed or args.append_result)


def _file_name(measured: ServingRun) -> str:
    settings = measured.settings
    concurrency = f"-concurrency{measured.max_concurrency}" if measured.max_concurrency is not None else ""
    model = str(settings.get("model_id", "")).rpartition("/")[2]
    begin = settings["label"] or settings["backend"]
    return f"{begin}-{measured.request_rate}qps{concurrency}-{model}-{settings['date']}.json"
