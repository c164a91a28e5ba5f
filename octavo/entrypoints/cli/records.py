"""Results as JSON records, one per line of a JSONL file."""

from __future__ import annotations

import json
from typing import Any

from octavo.entrypoints.cli.prompts import PromptItem
from octavo.types.outputs import CompletionOutput, LogprobsOnePosition, RequestOutput
from octavo.types.sampling_checks import is_valid_unicode


def result_record(index: int, item: PromptItem, output: RequestOutput) -> dict[str, Any]:
    """Return the record of one finished request; absent facts are left out rather than null."""
    record: dict[str, Any] = {"index": index}
    if item.id is not None:
        record["id"] = item.id
    if item.messages is not None:
        record["messages"] = item.messages
    elif item.text is not None:
        record["prompt"] = item.text
    record["num_prompt_tokens"] = len(output.prompt_token_ids or [])
    record["num_cached_tokens"] = output.num_cached_tokens or 0
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [None if one is None else _candidates(one) for one in output.prompt_logprobs]
    record["outputs"] = [_completion(completion) for completion in output.outputs]
    return record


def json_line(record: dict[str, Any]) -> str:
    """Return a record as a line of JSON, readable where it can be: a lone surrogate (in an id) is written escaped."""
    line = json.dumps(record, ensure_ascii=False)
    return (line if is_valid_unicode(line) else json.dumps(record)) + "\n"


def _completion(completion: CompletionOutput) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        record["cumulative_logprob"] = completion.cumulative_logprob
        record["logprobs"] = [_candidates(one) for one in completion.logprobs]
    return record


def _candidates(position: LogprobsOnePosition) -> list[dict[str, Any]]:
    return [
        {"token_id": token_id, "token": one.decoded_token, "logprob": one.logprob, "rank": one.rank}
        for token_id, one in position.items()
    ]
