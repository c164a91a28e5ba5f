"""Structured outputs and tools through other people's clients: OpenAI's, Anthropic's, pydantic-ai's and LangChain's.

Each function yields (what, whether it held, a detail). The model is tiny: what it says is nonsense, but a schema or a
forced call makes it nonsense of the right form, which the clients' own classes read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Optional, Union

from pydantic import BaseModel, Field

Check = tuple[str, bool, str]
MAX_TOKENS = 600


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    street: str = Field(max_length=20)
    number: int = Field(ge=1, le=999)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[Colour] = Field(max_length=3)


class Person(BaseModel):
    """Every kind of field that clients turn into a schema of its own form."""

    name: str = Field(min_length=1, max_length=20)
    age: int = Field(ge=0, le=150)
    colour: Colour
    mood: Literal["good", "bad"]
    nickname: Optional[Colour]  # noqa: UP045  # as people write it
    address: Address
    former: list[Address] = Field(max_length=2)
    pet: Union[Cat, Dog]  # noqa: UP007
    born: datetime
    is_well: bool


class Tree(BaseModel):
    value: Literal[1, 2]
    children: list[Tree] = Field(max_length=1)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)
    population: int = Field(ge=0, le=40_000_000)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}
ASK = "What is the weather in Paris?"


def try_openai(url: str, model: str) -> Iterator[Check]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    options: dict[str, Any] = {"model": model, "temperature": 0.7, "seed": 1}
    for kind in (Person, Tree, City):
        temperature = 2 if kind is Tree else 0.7  # so that it comes to an end: the model likes to nest
        messages = [{"role": "user", "content": f"Invent one: {kind.__name__}."}]
        answer = client.chat.completions.parse(
            messages=messages, response_format=kind, max_tokens=MAX_TOKENS, **{**options, "temperature": temperature}
        )
        parsed = answer.choices[0].message.parsed
        yield f"openai: chat.completions.parse({kind.__name__})", isinstance(parsed, kind), str(parsed)
        response = client.responses.parse(
            input=messages, text_format=kind, max_output_tokens=MAX_TOKENS, model=model, temperature=temperature
        )
        yield f"openai: responses.parse({kind.__name__})", isinstance(response.output_parsed, kind), ""
    yield from _openai_streams(client, options)
    yield from _openai_tools(client, options)


def _openai_streams(client: Any, options: dict[str, Any]) -> Iterator[Check]:
    messages = [{"role": "user", "content": "Invent a person."}]
    with client.chat.completions.stream(
        messages=messages, response_format=Person, max_tokens=MAX_TOKENS, **options
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message.parsed
    holds = isinstance(final, Person) and "content.delta" in kinds and kinds.count("content.done") == 1
    yield "openai: chat.completions.stream, parsed", holds, f"{len(kinds)} events"
    with client.responses.stream(
        input=messages, text_format=City, max_output_tokens=MAX_TOKENS, model=options["model"]
    ) as stream:
        kinds = [event.type for event in stream]
        parsed = stream.get_final_response().output_parsed
    holds = isinstance(parsed, City) and kinds[-1] == "response.completed"
    yield "openai: responses.stream, parsed", holds, f"{len(kinds)} events"


def _openai_tools(client: Any, options: dict[str, Any]) -> Iterator[Check]:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        what = "named" if isinstance(choice, dict) else choice
        messages: list[Any] = [{"role": "user", "content": ASK}]
        first = client.chat.completions.create(
            messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=MAX_TOKENS, **options
        ).choices[0]
        calls = first.message.tool_calls or []
        holds = bool(calls) and first.finish_reason == "tool_calls" and all(map(_is_weather, calls))
        yield f"openai: tool_choice {what}", holds, str([call.function.arguments for call in calls])
        messages += [first.message, *({"role": "tool", "tool_call_id": call.id, "content": "Rain"} for call in calls)]
        last = client.chat.completions.create(
            messages=messages, tools=[TOOL], tool_choice="none", max_tokens=30, **options
        ).choices[0]
        yield f"openai: the loop behind it ({what})", bool(last.message.content), repr(last.message.content)
        with client.chat.completions.stream(
            messages=messages[:1], tools=[TOOL], tool_choice=choice, max_tokens=MAX_TOKENS, **options
        ) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion().choices[0].message.tool_calls
        same = [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
        yield f"openai: streamed as whole ({what})", same and "tool_calls.function.arguments.done" in kinds, str(kinds)
    flat = {"type": "function", "strict": True, **FUNCTION}
    response = client.responses.create(
        input=ASK, tools=[flat], tool_choice="required", model=options["model"], max_output_tokens=MAX_TOKENS
    )
    calls = [item for item in response.output if item.type == "function_call"]
    yield "openai: responses, required", bool(calls), str([call.arguments for call in calls])
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain"} for call in calls]
    last = client.responses.create(
        input=results, previous_response_id=response.id, model=options["model"], max_output_tokens=30
    )
    yield "openai: responses, the loop behind it", bool(last.output_text), repr(last.output_text)


def _is_weather(call: Any) -> bool:
    arguments = json.loads(call.function.arguments)
    return call.function.name == "weather" and set(arguments) == {"city", "unit"} and arguments["unit"] in "CF"


def try_anthropic(url: str, model: str) -> Iterator[Check]:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    tool = {"name": "weather", "description": FUNCTION["description"], "input_schema": WEATHER}
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        messages: list[Any] = [{"role": "user", "content": ASK}]
        options: dict[str, Any] = {"model": model, "tools": [tool]}
        first = client.messages.create(messages=messages, tool_choice=choice, max_tokens=MAX_TOKENS, **options)
        uses = [block for block in first.content if block.type == "tool_use"]
        holds = bool(uses) and first.stop_reason == "tool_use" and set(uses[0].input) == {"city", "unit"}
        yield f"anthropic: tool_choice {choice['type']}", holds, str([use.input for use in uses])
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "Rain"} for use in uses]
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        last = client.messages.create(messages=messages, max_tokens=30, tool_choice={"type": "none"}, **options)
        text = "".join(block.text for block in last.content if block.type == "text")
        yield f"anthropic: the loop behind it ({choice['type']})", bool(text), repr(text)
        with client.messages.stream(
            messages=messages[:1], tool_choice=choice, max_tokens=MAX_TOKENS, **options
        ) as stream:
            kinds = {event.type for event in stream}
            block = next(block for block in stream.get_final_message().content if block.type == "tool_use")
        yield f"anthropic: streamed ({choice['type']})", "input_json" in kinds and "city" in block.input, str(block)


def try_pydantic_ai(url: str, model: str) -> Iterator[Check]:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    own = OpenAIChatModel(model, provider=provider)
    settings: Any = {"max_tokens": MAX_TOKENS, "temperature": 0.7, "seed": 1}
    by_call: Any = Agent(own, output_type=City, model_settings=settings)
    result = by_call.run_sync("Name a city.")
    yield "pydantic-ai: output by a forced call", isinstance(result.output, City), repr(result.output)
    native: Any = Agent(own, output_type=NativeOutput(Person), model_settings=settings)
    person = native.run_sync("Invent a person.").output
    yield "pydantic-ai: output by response_format", isinstance(person, Person), ""
    told: list[str] = []

    async def once(context: Any, definition: Any) -> Any:
        return None if told else definition

    @by_call.tool_plain(prepare=once)
    def country_of(city: Literal["Paris", "Rome"]) -> str:
        """Say where a city is."""
        told.append(city)
        return "France" if city == "Paris" else "Italy"

    for seed in range(8):  # the model must call one of the two: whichever it likes
        result = by_call.run_sync("Where is Paris? Ask.", model_settings={**settings, "seed": seed})
        if told:
            break
    parts = [part.part_kind for message in result.all_messages() for part in message.parts]
    holds = isinstance(result.output, City) and bool(told) and parts.count("tool-call") == 2
    yield "pydantic-ai: an agent with a tool", holds, f"{told} {parts}"


def try_langchain_tools(url: str, model: str) -> Iterator[Check]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=0.7, seed=1, max_tokens=MAX_TOKENS)
    for method in ("json_schema", "function_calling"):
        city = chat.with_structured_output(City, method=method).invoke("Describe Paris.")
        yield f"LangChain: with_structured_output, {method}", isinstance(city, City), repr(city)
    raw = chat.with_structured_output(Person, include_raw=True).invoke("Invent a person.")
    yield "LangChain: with_structured_output, raw too", raw["parsing_error"] is None, str(raw["parsed"])
    for choice in ("any", "weather"):
        bound = chat.bind_tools([TOOL], tool_choice=choice)
        messages: list[Any] = [HumanMessage(ASK)]
        answer = bound.invoke(messages)
        holds = bool(answer.tool_calls) and set(answer.tool_calls[0]["args"]) == {"city", "unit"}
        yield f"LangChain: bind_tools, {choice}", holds, str([call["args"] for call in answer.tool_calls])
        results = [ToolMessage("Rain", tool_call_id=call["id"]) for call in answer.tool_calls]
        last = chat.bind_tools([TOOL], tool_choice="none").invoke([*messages, answer, *results])
        yield f"LangChain: the loop behind it ({choice})", bool(last.content), repr(last.content[:60])
