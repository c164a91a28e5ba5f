"""The parser of ECMA-262 regular expressions (u flag) behind `regex_syntax.parse_pattern`."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

from octavo.structured.json_schema.regex_syntax import (
    ANY_INTERVALS,
    EMPTY,
    LAST_CODE_POINT,
    MAX_GROUP_DEPTH,
    MAX_PATTERN_LENGTH,
    MAX_REPEAT,
    Alternate,
    Anchor,
    Chars,
    Intervals,
    Look,
    Node,
    PatternError,
    Repeat,
    WordEdge,
    complement_of,
    concat,
    union_of,
)

CONTROL_ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
LOOKS = (("?=", False, False), ("?!", True, False), ("?<=", False, True), ("?<!", True, True))  # sign, negative, behind
SYNTAX_CHARACTERS = set("^$\\.*+?()[]{}|/")
ASCII_DIGITS: Intervals = ((0x30, 0x39),)
ASCII_WORD: Intervals = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Intervals = ((0x09, 0x0D), (0x20, 0x20))
# Where each run of ten decimal digits begins (Unicode 16, category Nd): Python takes all, ECMA-262 only ASCII.
DIGIT_ZEROS = (
    *(0x30, 0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50, 0xED0),
    *(0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620),
    *(0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x10D40, 0x11066, 0x110F0, 0x11136),
    *(0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x116D0, 0x116DA, 0x11730, 0x118E0, 0x11950, 0x11BF0),
    *(0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16130, 0x16A60, 0x16AC0, 0x16B50, 0x16D70, 0x1CCF0, 0x1D7CE, 0x1D7D8),
    *(0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0),
)
WIDE_DIGITS = union_of(tuple((zero, zero + 9) for zero in DIGIT_ZEROS))
# White space of ECMA-262 and of Python together.
WIDE_SPACE = union_of(
    ASCII_SPACE,
    ((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)),
    ((0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
# Beyond ASCII these blocks of punctuation, symbols and emoji hold no letter and no digit; everything else may be one.
NO_WORD: Intervals = (
    *((0x80, 0xA9), (0xAB, 0xB1), (0xB4, 0xB4), (0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7)),
    *((0x2010, 0x2027), (0x2030, 0x203E), (0x2041, 0x2053), (0x2055, 0x205E), (0x20A0, 0x20BF), (0x2190, 0x23FF)),
    *((0x2500, 0x2767), (0x3001, 0x3003), (0x3008, 0x3020), (0x1F300, 0x1F9FF)),
)
WIDE_WORD = union_of(ASCII_WORD, complement_of(union_of(((0, 0x7F),), NO_WORD)))
LINE_FEED: Intervals = ((0x0A, 0x0A),)  # what Python leaves out of a dot
LINE_ENDS: Intervals = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))  # what ECMA-262 leaves out


@cache
def code_points_of(category: str) -> Intervals:
    """Return the code points of a Unicode general category, such as L or Nd."""
    found = (
        (code, code)
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(chr(code)).startswith(category) and not 0xD800 <= code <= 0xDFFF
    )
    return union_of(tuple(found))


def class_bounds(letter: str) -> tuple[Intervals, Intervals]:
    """Return what every dialect puts into the class \\d, \\w or \\s, and a set that holds what any dialect puts in."""
    if letter == "d":
        return ASCII_DIGITS, WIDE_DIGITS
    if letter == "w":
        return ASCII_WORD, WIDE_WORD
    return ASCII_SPACE, WIDE_SPACE


def parse_ecma(text: str, *, wide: bool = False) -> Node:
    """Parse to a tree with anchors; `wide`: where dialects differ, take what any allows. Raises PatternError."""
    if len(text) > MAX_PATTERN_LENGTH:
        raise PatternError(f"the pattern is longer than {MAX_PATTERN_LENGTH} characters")
    parser = Parser(text, wide)
    tree = parser.alternatives(0)
    if parser.position < len(text):
        raise PatternError(f"unbalanced ')' at character {parser.position}")
    return tree


class Parser:
    """A recursive-descent parser over one pattern."""

    def __init__(self, text: str, wide: bool) -> None:
        self.text = text
        self.wide = wide
        self.position = 0

    def peek(self) -> str:
        return self.text[self.position] if self.position < len(self.text) else ""

    def take(self) -> str:
        if self.position >= len(self.text):
            raise PatternError("the pattern ends in the middle")
        self.position += 1
        return self.text[self.position - 1]

    def accept(self, expected: str) -> bool:
        if self.text.startswith(expected, self.position):
            self.position += len(expected)
            return True
        return False

    def alternatives(self, depth: int) -> Node:
        if depth > MAX_GROUP_DEPTH:
            raise PatternError(f"groups nest deeper than {MAX_GROUP_DEPTH}")
        branches = [self.sequence(depth)]
        while self.accept("|"):
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else Alternate(tuple(branches))

    def sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (character := self.peek()) and character not in "|)":
            items.append(self.quantified(self.atom(depth)))
        return concat(tuple(items)) if items else EMPTY

    def quantified(self, item: Node) -> Node:
        bounds = self.quantifier()
        if bounds is None:
            return item
        self.accept("?")  # laziness chooses among matches, not whether there is one
        if isinstance(item, (Anchor, Look, WordEdge)):
            raise PatternError("a quantifier after an assertion is not supported")
        if self.peek() and self.peek() in "*+?":
            raise PatternError(f"nothing to repeat at character {self.position}")
        return Repeat(item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.accept(sign):
                return bounds
        if self.peek() != "{":
            return None
        end = self.text.find("}", self.position)
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if end >= 0 and comma and low == "" and is_digits(high):
            raise PatternError("dialects disagree on {,n}; write {0,n}")
        if end < 0 or not is_digits(low) or not (high == "" or is_digits(high)):
            return None  # a literal brace, as browsers and Python read it
        self.position = end + 1
        least = int(low[:6])
        most = least if not comma else int(high[:6]) if high else None
        if max(least, most or 0) > MAX_REPEAT:
            raise PatternError(f"a repeat count is above {MAX_REPEAT}")
        if most is not None and most < least:
            raise PatternError(f"repeat {{{low},{high}}} is out of order")
        return least, most

    def atom(self, depth: int) -> Node:
        character = self.take()
        if character == "^":
            return Anchor(at_start=True)
        if character == "$":
            return Anchor(at_start=False)
        if character == ".":
            return Chars(complement_of(LINE_FEED if self.wide else LINE_ENDS))
        if character == "(":
            return self.group(depth)
        if character == "[":
            return Chars(self.char_class())
        if character == "\\":
            if self.peek() and self.peek() in "bB":
                return WordEdge(negated=self.take() == "B")
            if self.peek() and self.peek() in "AZ":  # of Python and Java; ECMA-262 forbids them
                return Anchor(at_start=self.take() == "A")
            return Chars(self.escape(in_class=False))
        if character in "*+?":
            raise PatternError(f"nothing to repeat at character {self.position - 1}")
        return Chars(((ord(character), ord(character)),))

    def group(self, depth: int) -> Node:
        for sign, negative, behind in LOOKS:
            if self.accept(sign):
                self.wide ^= negative  # a negative look is sure where its item is not even possible
                inner = self.closed(depth)
                self.wide ^= negative
                return Look(inner, negative, behind)
        if self.accept("?P<") or self.accept("?<"):
            end = self.text.find(">", self.position)
            if end < 0 or not self.text[self.position : end].isidentifier():
                raise PatternError("a group name is malformed")
            self.position = end + 1
        elif self.peek() == "?" and not self.accept("?:"):
            raise PatternError(f"group extension {self.text[self.position : self.position + 2]!r} is not supported")
        return self.closed(depth)

    def closed(self, depth: int) -> Node:
        inner = self.alternatives(depth + 1)
        if not self.accept(")"):
            raise PatternError("a group is not closed")
        return inner

    def char_class(self) -> Intervals:
        negated = self.accept("^")
        parts: list[Intervals] = []
        wide: list[Intervals] = []  # what any dialect takes in, for the complement
        if self.peek() == "]":
            raise PatternError("dialects disagree on ']' as the first of a character class; escape it")
        while not self.accept("]"):
            low, low_wide = self.class_member()
            is_single = len(low) == 1 and low[0][0] == low[0][1]  # [\w-.] is no range to those who take it at all
            if is_single and self.peek() == "-" and self.text[self.position + 1 : self.position + 2] not in ("]", ""):
                self.take()
                high, _ = self.class_member()
                if len(high) != 1 or high[0][0] != high[0][1]:
                    raise PatternError("a class such as \\d cannot end a range")
                if low[0][0] > high[0][0]:
                    raise PatternError("a range in a character class is out of order")
                low = low_wide = ((low[0][0], high[0][0]),)
            parts.append(low)
            wide.append(low_wide)
        if negated:
            return complement_of(union_of(*(parts if self.wide else wide)))
        return union_of(*(wide if self.wide else parts))

    def class_member(self) -> tuple[Intervals, Intervals]:
        character = self.take()
        if character != "\\":
            if character == "[" and self.peek() == ":":
                raise PatternError("POSIX classes such as [:alpha:] are not supported")
            single = ((ord(character), ord(character)),)
            return single, single
        if self.peek() and self.peek() in "dws":
            return class_bounds(self.take())
        intervals = self.escape(in_class=True)
        return intervals, intervals

    def escape(self, *, in_class: bool) -> Intervals:
        letter = self.take()
        if letter in "dws":
            return class_bounds(letter)[self.wide]
        if letter in "DWS":
            return complement_of(class_bounds(letter.lower())[not self.wide])
        if letter in "pP":
            return self.unicode_property(negated=letter == "P")
        if letter == "b" and in_class:
            return ((8, 8),)
        if letter in "123456789" or letter == "k":
            raise PatternError("back-references are not supported")
        code = self.character_escape(letter)
        return ((code, code),)

    def character_escape(self, letter: str) -> int:
        if letter == "0" and is_digits(self.peek()):
            raise PatternError("octal escapes are not supported")
        if letter in CONTROL_ESCAPES:
            return CONTROL_ESCAPES[letter]
        if letter == "c":
            control = self.take()
            if not (control.isascii() and control.isalpha()):
                raise PatternError("\\c must be followed by a letter")
            return ord(control) % 32
        if letter == "x":
            return self.hexadecimal(2)
        if letter == "u":
            return self.unicode_escape()
        if letter in SYNTAX_CHARACTERS or not letter.isalnum():
            return ord(letter)
        raise PatternError(f"unknown escape \\{letter}")

    def unicode_escape(self) -> int:
        if self.accept("{"):
            end = self.text.find("}", self.position)
            digits = self.text[self.position : max(end, self.position)]
            self.position = end + 1
            if not digits or len(digits) > 6 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise PatternError("\\u{...} is malformed")
            code = int(digits, 16)
        else:
            code = self.hexadecimal(4)
            if 0xD800 <= code <= 0xDBFF and self.accept("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
        if code > LAST_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            raise PatternError("an escape is no Unicode character")
        return code

    def hexadecimal(self, count: int) -> int:
        digits = self.text[self.position : self.position + count]
        if len(digits) < count or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise PatternError("a hexadecimal escape is malformed")
        self.position += count
        return int(digits, 16)

    def unicode_property(self, *, negated: bool) -> Intervals:
        end = self.text.find("}", self.position)
        if not self.accept("{") or end < 0:
            raise PatternError("\\p must be followed by {category}")
        name = self.text[self.position : end].removeprefix("General_Category=").removeprefix("gc=")
        self.position = end + 1
        known = {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No"}
        known |= {
            "C",
            "Cc",
            "Cf",
            "Cn",
            "Co",
            "P",
            "Pc",
            "Pd",
            "Ps",
            "Pe",
            "Pi",
            "Pf",
            "Po",
            "S",
            "Sm",
            "Sc",
            "Sk",
            "So",
            "Z",
            "Zs",
            "Zl",
            "Zp",
        }
        long_names = {"Letter": "L", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Number": "N", "digit": "Nd"}
        name = long_names.get(name, name)
        if name == "Any":
            return () if negated else ANY_INTERVALS
        if name not in known:
            raise PatternError(f"Unicode property {name!r} is not supported")
        return complement_of(code_points_of(name)) if negated else code_points_of(name)


def is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
