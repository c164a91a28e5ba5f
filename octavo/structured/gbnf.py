"""GBNF and EBNF as Lark: `name ::= …` with a rule `root`, as llama.cpp and xgrammar read them.

Literals, character classes, `.`, groups, `|`, `? * +` and {m}, {m,}, {m,n}; comments from `#` to the line's end. A rule
goes on over line breaks until the next `name ::=`. Rules that only join literals and classes become terminals, which
are matched as one regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from octavo.structured.backend import GrammarError
from octavo.structured.lark import lark_text

_TOKENS = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<define>(?P<defined>[A-Za-z_][\w-]*)[ \t]*::=)
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<literal>"(?:[^"\\\r\n]|\\.)*")
    |(?P<set>\[\^?(?:[^\]\\]|\\.)*\])
    |(?P<repeat>[?*+]|\{[ \t]*\d+[ \t]*(?:,[ \t]*\d*[ \t]*)?\})
    |(?P<sign>[()|.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass
class _Rule:
    """A rule as Lark words; names: the rules that it refers to, at their places marked by a NUL before the name."""

    words: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def to_lark(text: str) -> str:
    """Return the grammar as Lark with `start` for `root`; raises GrammarError that says where it is wrong."""
    rules = _read(text)
    if "root" not in rules:
        raise GrammarError("it has no rule `root` (GBNF, EBNF) or `start` (Lark)")
    for name, rule in rules.items():
        unknown = sorted(rule.names - rules.keys())
        if unknown:
            raise GrammarError(f"the rule `{name}` refers to `{unknown[0]}`, which is not defined")
    terminals = _terminals(rules)
    lark_names = {
        name: "start" if name == "root" else f"{'T' if name in terminals else 'r'}{i}" for i, name in enumerate(rules)
    }
    lines = []
    for name, rule in rules.items():
        words = [lark_names[word[1:]] if word.startswith("\0") else word for word in rule.words]
        lines.append(f"{lark_names[name]}: {' '.join(words)}")
    return "\n".join(lines)


def _read(text: str) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    rule: _Rule | None = None
    depth = 0
    for kind, token, where in _tokens(text):
        if kind == "define":
            name = token.removesuffix("::=").rstrip()
            if depth:
                raise GrammarError(f"a parenthesis before the rule `{name}` is not closed")
            if name in rules:
                raise GrammarError(f"the rule `{name}` is defined twice")
            rule = rules[name] = _Rule()
            continue
        if rule is None:
            raise GrammarError(f"{where}: expected `name ::=`, got {token[:40]!r}")
        depth += (token == "(") - (token == ")")
        if depth < 0:
            raise GrammarError(f"{where}: a parenthesis is closed that was not opened")
        _add(rule, kind, token, where)
    if depth:
        raise GrammarError("a parenthesis is not closed")
    for name, each in rules.items():
        _check(name, each)
    return rules


def _tokens(text: str) -> Iterator[tuple[str, str, str]]:
    position = 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        where = f"line {text.count(chr(10), 0, position) + 1}"
        if match is None:
            raise GrammarError(f"{where}: {text[position : position + 20]!r} is not understood")
        kind = match.lastgroup or ""
        position = match.end()
        if kind != "space":
            yield ("define" if kind == "defined" else kind), match.group(), where


def _add(rule: _Rule, kind: str, token: str, where: str) -> None:
    words = rule.words
    if kind == "name":
        rule.names.add(token)
        words.append(f"\0{token}")
    elif kind == "literal":
        words.append(lark_text(_unescaped(token[1:-1], where)))
    elif kind == "set":
        words.append(_set(token, where))
    elif kind == "repeat":
        if not words or words[-1] in ("|", "("):
            raise GrammarError(f"{where}: {token!r} has nothing to repeat")
        words[-1] += re.sub(r"[ \t]", "", token)
    elif token == ".":
        words.append(r"/(.|\n)/")
    else:
        words.append(token)


def _check(name: str, rule: _Rule) -> None:
    """Give an empty alternative its Lark form."""
    words: list[str] = []
    for word in [*rule.words, ""]:
        if word in ("|", ")", "") and (not words or words[-1] in ("|", "(")):
            words.append('""')
        if word:
            words.append(word)
    rule.words = words


def _terminals(rules: Mapping[str, _Rule]) -> set[str]:
    """Return the rules that refer to none but such rules, and not to themselves."""
    found: set[str] = set()
    while True:
        more = {name for name, rule in rules.items() if name not in found and name != "root" and rule.names <= found}
        if not more:
            return found
        found |= more


def _unescaped(text: str, where: str) -> str:
    return _ESCAPE.sub(lambda match: _character(match, where), text)


def _character(match: re.Match[str], where: str) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _CONTROLS.get(match[4], match[4])
    value = int(code, 16)
    if value > 0x10FFFF or 0xD800 <= value < 0xE000:
        raise GrammarError(f"{where}: {match.group()} is no character")
    return chr(value)


def _set(token: str, where: str) -> str:
    """Return a character class as a regular expression, every character but the range's dash by its number."""
    body = token[1:-1]
    negation = "^" if body.startswith("^") else ""
    parts: list[str] = []
    position = len(negation)
    while position < len(body):
        escape = _ESCAPE.match(body, position)
        character = body[position] if escape is None else _character(escape, where)
        is_range = escape is None and character == "-" and parts and position < len(body) - 1
        parts.append("-" if is_range else f"\\u{{{ord(character):x}}}")
        position += 1 if escape is None else len(escape.group())
    if not parts:
        raise GrammarError(f"{where}: the character class {token} is empty")
    return f"/[{negation}{''.join(parts)}]/"
