"""From what a user wrote to a grammar of the guidance backend: the one place that knows both.

Runs in the compiling process: what it reads may be hostile, and nothing here but that process is lost with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import llguidance

from octavo.structured import gbnf, structural_tag
from octavo.structured.backend import GrammarError
from octavo.structured.guidance import LARK, LARK_HEADER, NAME, SCHEMA
from octavo.structured.json_schema import UNIQUE_PLACES, SchemaRefusedError, prepare_schema
from octavo.structured.json_schema.strings import is_json_whitespace
from octavo.structured.lark import lark_text
from octavo.structured.messages import GrammarJob, JsonStyle
from octavo.types.grammar import GrammarSpec

# White space that JSON may have between its tokens, unless told otherwise: a line break and a deep indentation, but no
# endless run of either, which small models fall into.
DEFAULT_WHITESPACE = r"[ \t\n\r]{1,40}"


def lark_spec(job: GrammarJob) -> GrammarSpec:
    """Return the job's grammar; raises GrammarError for what cannot be enforced."""
    try:
        if job.constraint in ("json", "json_object"):
            return _json(job)
        rules = _SOURCES[job.constraint](job)
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    return GrammarSpec(NAME, LARK, rules if rules.startswith("%llguidance") else LARK_HEADER + rules)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _json(job: GrammarJob) -> GrammarSpec:
    schema = {"type": "object"} if job.constraint == "json_object" else json.loads(job.text)
    rule, unique_places = json_rule(schema, job.style)
    return GrammarSpec(NAME, SCHEMA, f"{LARK_HEADER}start: {rule}", unique_places)


def prepared_schema(schema: Any, style: JsonStyle) -> dict[str, Any]:
    """Return a schema of which a backend enforces every keyword; raises GrammarError naming one that none can."""
    try:
        return prepare_schema(schema, disable_additional_properties=style.close_objects)
    except SchemaRefusedError as error:
        what = f"keyword {error.keyword!r}" if error.keyword else "the schema"
        raise GrammarError(f"{what} at #{error.pointer}: {error.reason}") from None


def json_rule(schema: Any, style: JsonStyle) -> tuple[str, str]:
    """Return the Lark expression for a JSON value that a schema describes, and its unique_places (see GrammarSpec).

    Raises GrammarError naming a keyword.
    """
    prepared = prepared_schema(schema, style)
    options = prepared.pop("x-guidance")
    places = prepared.pop(UNIQUE_PLACES, None)
    options |= {"item_separator": ",", "key_separator": ":", "whitespace_flexible": False}
    if style.whitespace_pattern is not None or not style.compact:
        pattern = DEFAULT_WHITESPACE if style.whitespace_pattern is None else style.whitespace_pattern
        if not is_json_whitespace(pattern):
            raise GrammarError(
                f"whitespace_pattern {pattern[:80]!r} may match other characters than spaces, tabs and line breaks, "
                r"which are all the white space of JSON; an example is [ \t\r\n]*"
            )
        options |= {"whitespace_flexible": True, "whitespace_pattern": pattern}
    rule = "%json " + json.dumps({**prepared, "x-guidance": options}, ensure_ascii=False)
    return rule, "" if places is None else json.dumps(places)


# -- the others --------------------------------------------------------------------------------------------------------


def regex_rule(pattern: str) -> str:
    """Return the Lark expression for a regular expression that must match the whole of a text."""
    return f"/{llguidance.regex_to_lark(pattern, '')}/" if pattern else '""'


def _regex(job: GrammarJob) -> str:
    return f"start: {regex_rule(job.text)}"


def _choice(job: GrammarJob) -> str:
    # a terminal, one automaton for all choices: a rule would try them side by side at every token
    return "start: CHOICE\nCHOICE: " + " | ".join(map(lark_text, json.loads(job.text)))


def _grammar(job: GrammarJob) -> str:
    return grammar_rules(job.text)


def grammar_rules(text: str) -> str:
    """Return a user's grammar as Lark, with its options set as the backend needs them."""
    if not IS_LARK.search(text):
        return gbnf.to_lark(text)
    if _TEMPERATURE.search(text):
        raise GrammarError("a rule cannot set a temperature; give the request one")
    options = _OPTIONS.match(text)
    if _MISPLACED_OPTIONS.search(text, 0 if options is None else options.end()):
        raise GrammarError("%llguidance must stand on the first line, once")
    if options is None:
        return text
    try:
        chosen = json.loads(options[1])
    except ValueError as error:
        raise GrammarError(f"%llguidance must be followed by a JSON object on its line: {error}") from None
    if not isinstance(chosen, dict):
        raise GrammarError("%llguidance must be followed by a JSON object on its line")
    unknown = sorted(set(chosen).difference(_KNOWN_OPTIONS))
    if unknown:
        raise GrammarError(f"%llguidance has no option {unknown[0][:80]!r}; it has {', '.join(_KNOWN_OPTIONS)}")
    chosen["no_forcing"] = True
    return f"%llguidance {json.dumps(chosen)}\n{text[options.end() :]}"


def _structural_tag(job: GrammarJob) -> str:
    def json_within(schema: Any) -> str:
        rule, unique_places = json_rule(schema, job.style)
        if unique_places:
            raise GrammarError("keyword 'uniqueItems': it can be enforced only where the whole answer is JSON")
        return rule

    expressions = structural_tag.Expressions(json=json_within, regex=regex_rule, grammar=_nested_grammar)
    return structural_tag.to_lark(json.loads(job.text), expressions)


def _nested_grammar(text: str) -> str:
    rules = grammar_rules(text)
    if rules.startswith("%llguidance"):
        raise GrammarError("a grammar within a structural tag has no options of its own: leave %llguidance out")
    return f"%lark {{\n{rules}\n}}"


IS_LARK = re.compile(r"^\s*(%llguidance\b|start\s*(\[[^\]\n]*\]\s*)?:(?!:))", re.MULTILINE)
_TEMPERATURE = re.compile(r"^\s*[\w.-]+\s*\[[^\]\n]*\btemperature\b[^\]\n]*\]\s*:", re.MULTILINE)
_KNOWN_OPTIONS = ("no_forcing", "allow_initial_skip", "allow_invalid_utf8")  # others the library ignores
_MISPLACED_OPTIONS = re.compile(r"^\s*%llguidance\b", re.MULTILINE)
_OPTIONS = re.compile(r"\s*%llguidance\s*([^\n]*)\n?")
_SOURCES: Mapping[str, Callable[[GrammarJob], str]] = {
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}
