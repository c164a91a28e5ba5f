"""Structural tags as Lark: free text whose marked passages must follow schemas of their own.

Two forms are read: {"structures": [{begin, schema, end}], "triggers": […]}, and {"format": …}, a tree of formats as
xgrammar describes them. What a tree cannot say here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.structured.backend import GrammarError
from octavo.structured.lark import lark_text
from octavo.types.sampling_checks import shown

TEXT = r"/(.|\n)*/"


@dataclass(frozen=True)
class Expressions:
    """How a passage's content is written in Lark: each function returns an expression or raises GrammarError."""

    json: Callable[[Any], str]
    regex: Callable[[str], str]
    grammar: Callable[[str], str]


@dataclass(frozen=True)
class _Piece:
    """A Lark expression. is_regular: it may be part of a terminal; is_text: any text, up to what ends it."""

    expression: str
    is_regular: bool = False
    is_text: bool = False


def to_lark(tag: Any, expressions: Expressions) -> str:
    """Return the rules of a decoded structural tag, `start` first; raises GrammarError naming what is wrong."""
    if not isinstance(tag, dict):
        raise GrammarError("it must be a JSON object")
    if tag.get("type", "structural_tag") != "structural_tag":
        raise GrammarError(f'"type" must be "structural_tag", not {shown(tag.get("type"))}')
    writer = _Writer(expressions)
    if "format" in tag:
        _only(tag, "the structural tag", ("type", "format"))
        start = writer.rule(writer.piece(tag["format"]))
    else:
        _only(tag, "the structural tag", ("type", "structures", "triggers"))
        start = writer.rule(writer.triggered(_as_format(tag)))
    return "\n".join([f"start: {start}", *writer.rules])


def _as_format(tag: Mapping[str, Any]) -> dict[str, Any]:
    tags = []
    for index, structure in enumerate(_list(tag, "structures")):
        where = f"structures[{index}]"
        if not isinstance(structure, dict):
            raise GrammarError(f"{where} must be an object")
        _only(structure, where, ("begin", "schema", "end"))
        content = {"type": "json_schema", "json_schema": structure.get("schema", {})}
        tags.append({"type": "tag", "begin": structure.get("begin"), "content": content, "end": structure.get("end")})
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


class _Writer:
    """Collects rules; names are used once."""

    def __init__(self, expressions: Expressions) -> None:
        self.rules: list[str] = []
        self._expressions = expressions
        self._num_names = 0

    def piece(self, node: Any) -> _Piece:
        """Return a format's expression."""
        if not isinstance(node, dict):
            raise GrammarError(f"a format must be an object, not {shown(node)}")
        kind = node.get("type")
        method = _FORMATS.get(kind) if isinstance(kind, str) else None
        if method is None:
            raise GrammarError(f"formats of type {shown(kind)} are not supported; {', '.join(_FORMATS)} are")
        return method(self, node)

    def rule(self, piece: _Piece) -> str:
        """Return the name of a rule for a piece; a regular one becomes a terminal, so that it is matched as a whole."""
        self._num_names += 1
        name = f"{'T' if piece.is_regular else 'r'}{self._num_names}"
        self.rules.append(f"{name}: {piece.expression}")
        return name

    def lazy(self, end: str) -> str:
        """Return the name of a rule for any text up to and with the first `end`."""
        self._num_names += 1
        name = f"r{self._num_names}"
        self.rules.append(f"{name}[lazy]: {TEXT} {lark_text(end)}")
        return name

    # -- formats -------------------------------------------------------------------------------------------------------

    def const(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "const_string", ("type", "value"))
        return _Piece(lark_text(_text(node, "value")), is_regular=True)

    def json(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "json_schema", ("type", "json_schema", "style"))
        if node.get("style", "json") != "json":
            raise GrammarError(f'json_schema: "style" must be "json", not {shown(node.get("style"))}')
        if "json_schema" not in node:
            raise GrammarError('json_schema: "json_schema" is missing')
        return _Piece(self._expressions.json(node["json_schema"]))

    def regex(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "regex", ("type", "pattern"))
        return _Piece(self._expressions.regex(_text(node, "pattern")), is_regular=True)

    def grammar(self, node: Mapping[str, Any]) -> _Piece:
        return _Piece(self._expressions.grammar(_text(node, "grammar")))

    def any_text(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "any_text", ("type", "excludes"))
        excluded = _list(node, "excludes") if node.get("excludes") else []
        if not excluded:
            return _Piece(TEXT, is_regular=True, is_text=True)
        words = " | ".join(lark_text(word) for word in map(str, excluded))
        self._num_names += 1
        name = f"T{self._num_names}"
        self.rules.append(f"{name}: {TEXT} & ~({TEXT} ({words}) {TEXT})")
        return _Piece(name, is_regular=True, is_text=True)

    def sequence(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "sequence", ("type", "elements"))
        pieces = [self.piece(element) for element in _list(node, "elements")]
        for piece in pieces[:-1]:
            if piece.is_text:
                raise GrammarError("any_text must be the last element of a sequence, or the content of a tag")
        return self._joined(pieces)

    def alternatives(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "or", ("type", "elements"))
        pieces = [self.piece(element) for element in _list(node, "elements")]
        return _Piece(" | ".join(f"({self.rule(piece)})" for piece in pieces))

    def optional(self, node: Mapping[str, Any]) -> _Piece:
        return self._repeated(node, "?")

    def star(self, node: Mapping[str, Any]) -> _Piece:
        return self._repeated(node, "*")

    def plus(self, node: Mapping[str, Any]) -> _Piece:
        return self._repeated(node, "+")

    def _repeated(self, node: Mapping[str, Any], operator: str) -> _Piece:
        _only(node, str(node["type"]), ("type", "content"))
        return _Piece(self.rule(self.piece(node.get("content"))) + operator)

    def tag(self, node: Mapping[str, Any]) -> _Piece:
        return self._tag_after(node, "")

    def _tag_after(self, node: Mapping[str, Any], trigger: str) -> _Piece:
        """Return a tag without the beginning of its `begin`."""
        _only(node, "tag", ("type", "begin", "content", "end"))
        begin = _text(node, "begin")[len(trigger) :]
        end = node.get("end", "")
        ends = end if isinstance(end, list) else [end]
        if not ends or not all(isinstance(one, str) for one in ends):
            raise GrammarError(f'tag: "end" must be a string or a list of strings, not {shown(end)}')
        content = self.piece(node.get("content"))
        pieces = [_Piece(lark_text(begin), is_regular=True)] if begin else []
        if content.is_text and any(ends):
            if content.expression != TEXT or not all(ends):
                raise GrammarError("tag: any_text with excludes, or with an end that may be empty, is not supported")
            pieces.append(_Piece("(" + " | ".join(self.lazy(one) for one in ends) + ")"))
            return self._joined(pieces)
        pieces.append(content)
        if any(ends):
            pieces.append(_Piece("(" + " | ".join(map(lark_text, ends)) + ")", is_regular=True))
        return self._joined(pieces)

    def triggered(self, node: Mapping[str, Any]) -> _Piece:
        """Free text; where it has come to a trigger, one of the tags that begin with it must follow."""
        _only(node, "triggered_tags", ("type", "triggers", "tags", "at_least_one", "stop_after_first"))
        triggers = _list(node, "triggers")
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise GrammarError('"triggers" must be non-empty strings')
        tags = _list(node, "tags")
        rests: dict[str, list[str]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            begin = _text(_tag(tag), "begin")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise GrammarError(f"the tag that begins with {shown(begin)} begins with none of the triggers")
            rests[trigger].append(self.rule(self._tag_after(tag, trigger)))
        passages = [f"{self.lazy(trigger)} ({' | '.join(rest)})" for trigger, rest in rests.items() if rest]
        passage = self.rule(_Piece(" | ".join(passages)))
        text = self.rule(_Piece(TEXT))
        if not node.get("at_least_one"):
            return _Piece(f"{passage} | {text}" if node.get("stop_after_first") else f"{passage}* {text}")
        first = self.rule(_Piece(" | ".join(f"({self.rule(self._tag_after(tag, ''))})" for tag in tags)))
        return _Piece(first if node.get("stop_after_first") else f"{first} {passage}* {text}")

    def separated(self, node: Mapping[str, Any]) -> _Piece:
        _only(node, "tags_with_separator", ("type", "tags", "separator", "at_least_one", "stop_after_first"))
        tags = [self.rule(self._tag_after(_tag(tag), "")) for tag in _list(node, "tags")]
        tag = self.rule(_Piece(" | ".join(tags)))
        separator = lark_text(_text(node, "separator"))
        several = tag if node.get("stop_after_first") else f"{tag} ({separator} {tag})*"
        return _Piece(several if node.get("at_least_one") else f"({several})?")

    def _joined(self, pieces: Sequence[_Piece]) -> _Piece:
        """Return pieces one after another; neighbours that are regular are matched together, as one terminal."""
        groups: list[list[_Piece]] = []
        for piece in pieces:
            if groups and piece.is_regular and groups[-1][-1].is_regular:
                groups[-1].append(piece)
            else:
                groups.append([piece])
        joined = [_Piece(" ".join(p.expression for p in group), group[0].is_regular) for group in groups]
        if len(joined) == 1:
            is_text = len(pieces) == 1 and pieces[0].is_text
            return _Piece(joined[0].expression, joined[0].is_regular, is_text)
        return _Piece(" ".join(self.rule(piece) for piece in joined))


_FORMATS: Mapping[str, Callable[[_Writer, Mapping[str, Any]], _Piece]] = {
    "const_string": _Writer.const,
    "json_schema": _Writer.json,
    "regex": _Writer.regex,
    "grammar": _Writer.grammar,
    "any_text": _Writer.any_text,
    "sequence": _Writer.sequence,
    "or": _Writer.alternatives,
    "optional": _Writer.optional,
    "star": _Writer.star,
    "plus": _Writer.plus,
    "tag": _Writer.tag,
    "triggered_tags": _Writer.triggered,
    "tags_with_separator": _Writer.separated,
}


def _tag(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict) or node.get("type", "tag") != "tag":
        raise GrammarError(f'"tags" must be a list of tags, not of {shown(node)}')
    return node


def _only(node: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
    for key, value in node.items():
        if key not in known and value not in (None, False, []):
            raise GrammarError(f"{where}: the field {shown(key)} is not supported")


def _text(node: Mapping[str, Any], key: str) -> str:
    value = node.get(key)
    if not isinstance(value, str):
        raise GrammarError(f'{node.get("type", "structure")}: "{key}" must be a string, not {shown(value)}')
    return value


def _list(node: Mapping[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    if not isinstance(value, list) or not value:
        raise GrammarError(f'{node.get("type", "structure")}: "{key}" must be a non-empty list, not {shown(value)}')
    return value
