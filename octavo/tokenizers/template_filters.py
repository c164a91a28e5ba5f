"""How much text Jinja's filters and Python's string methods can make out of their arguments: upper bounds.

Only the functions in BOUNDS can make more than what goes in, or are costly otherwise; each has its own bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tokenizers.template_budget import TemplateBudget

_MAX_WIDTH_DIGITS = 5  # a field wider than 99,999 characters is no prompt
_MAX_ROUNDING = 100  # decimal places
_ESCAPE_FACTOR = 6  # \uXXXX and &quot; are the longest ways to write one character

_WIDE_PERCENT_FIELD = re.compile(rf"%(\([^)]*\))?[-+ #0]*(\d{{{_MAX_WIDTH_DIGITS + 1},}}|\*|\d*\.(\d{{6,}}|\*))")
_WIDE_BRACE_FIELD = re.compile(rf":[^{{}}]*(\d{{{_MAX_WIDTH_DIGITS + 1},}}|{{)")
_FIELD_WIDTH = re.compile(r"[%:.][-+ #0<>^=,_]*(\d+)")

Bound = Callable[[TemplateBudget, Any, Sequence[Any]], int]


def expanded_size(
    budget: TemplateBudget, name: str, value: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> int:
    """Return how many characters a filter or string method may create at most; 0 for one that only selects."""
    bound = BOUNDS.get(name)
    return 0 if bound is None else bound(budget, value, (*arguments, *keywords.values()))


def percent_format_size(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Bound `value % others`."""
    return _format_size(budget, str(value), others, _WIDE_PERCENT_FIELD)


def brace_format_size(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Bound `value.format(*others)`."""
    return _format_size(budget, str(value), others, _WIDE_BRACE_FIELD)


def _format_size(budget: TemplateBudget, template: str, others: Sequence[Any], too_wide: re.Pattern[str]) -> int:
    if too_wide.search(template):
        raise InvalidRequestError(
            f"the chat template formats a field of more than {_MAX_WIDTH_DIGITS} digits of width, or of a computed "
            "width; write the spaces out",
            "chat_template",
        )
    num_fields = template.count("%") + template.count("{")
    widths = sum(int(width) for width in _FIELD_WIDTH.findall(template))
    return len(template) + widths + num_fields * sum(budget.written_size(other) for other in others)


def _written(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    return budget.written_size(value)


def _escaped(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    return budget.written_size(value) * (_ESCAPE_FACTOR + sum(_amount(other) for other in others))


def _json_size(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Every node may stand on a line of its own, indented by its depth; separators come once a node."""
    per_node = sum(budget.written_size(other) for other in others)
    indent = max((_amount(other) for other in others), default=0)
    total = depth = 0
    level = [value]
    while level and not budget.is_beyond(total):
        total += sum(budget.own_size(item) for item in level) * _ESCAPE_FACTOR
        total += len(level) * (per_node + indent * depth)
        level = [child for item in level for child in budget.children(item)]
        depth += 1
    return total


def _squared(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """`pprint` indents by depth and is slow."""
    return budget.written_size(value) ** 2


def _padded(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    return budget.written_size(value) + sum(_amount(other) for other in others)


def _replaced(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    size = budget.written_size(value)
    if len(others) < 2 or not isinstance(value, str) or not isinstance(others[0], str):
        return size * (1 + sum(_amount(other) for other in others))
    return size + value.count(others[0]) * _amount(others[1])


def _joined(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Both `items|join(separator)` and `separator.join(items)`."""
    separator, items = (value, others[0]) if isinstance(value, str) and others else (others, value)
    num_items = len(items) if hasattr(items, "__len__") else 0
    return budget.written_size(items) + num_items * budget.written_size(separator)


def _inserted(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Something is put at every line or character: as often as there are characters, at most."""
    return budget.written_size(value) * (1 + sum(_amount(other) for other in others))


def _distributed(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """`batch` and `slice`: the count that is asked for is created even when there are fewer items."""
    return budget.written_size(value) + sum(_amount(other) for other in others if isinstance(other, int))


def _summed(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    """Numbers cost nothing; lists are copied once for every item that follows them."""
    size = budget.written_size(value)
    return size * (size if any(isinstance(other, (str, list, tuple)) for other in others) else 1)


def _rounded(budget: TemplateBudget, value: Any, others: Sequence[Any]) -> int:
    if any(_amount(other) > _MAX_ROUNDING for other in others if isinstance(other, (int, float))):
        raise InvalidRequestError(
            f"the chat template rounds to more than {_MAX_ROUNDING} decimal places", "chat_template"
        )
    return 0


def _amount(argument: Any) -> int:
    """Return how much an argument can add: a width or count by its value, text by its length."""
    if isinstance(argument, (int, float)):
        return abs(int(argument))
    if isinstance(argument, Mapping):  # the table of str.translate
        return sum(_amount(value) for value in argument.values())
    return len(argument) if isinstance(argument, str) else 0


BOUNDS: dict[str, Bound] = {
    # Sorting keeps a lower-case copy of every item.
    **dict.fromkeys(("sort", "dictsort", "groupby", "unique", "min", "max"), _written),
    **dict.fromkeys(("string", "split", "rsplit", "splitlines", "partition", "rpartition"), _written),
    **dict.fromkeys(("urlencode", "escape", "e", "forceescape", "xmlattr", "urlize"), _escaped),
    "tojson": _json_size,
    "pprint": _squared,
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("indent", "wordwrap", "expandtabs", "translate"), _inserted),
    **dict.fromkeys(("batch", "slice"), _distributed),
    "replace": _replaced,
    "join": _joined,
    "sum": _summed,
    "round": _rounded,
    "format": percent_format_size,  # the filter; the method is metered where it is looked up
}
