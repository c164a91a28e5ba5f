"""The Jinja environment for chat templates: immutable sandbox, Transformers' settings, every growth metered.

Metered: loops, calls, operators, concatenation, slices, filters, string methods, captured blocks and output. Templates
are compiled once each; the budget of the rendering at hand is kept per thread, so renderings may run side by side.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.visitor

from octavo.errors import InvalidRequestError
from octavo.tokenizers.template_budget import MAX_INTEGER_BITS, MAX_RANGE, TemplateBudget
from octavo.tokenizers.template_filters import BOUNDS, brace_format_size, expanded_size, percent_format_size

# Compiling takes up to 0.2 ms a tag; the longest templates in use have about 30,000 characters and 600 tags.
MAX_SOURCE_CHARACTERS = 100_000
MAX_SOURCE_TAGS = 5_000
_MAX_QUOTED = 500  # characters of a template's own error text

# Methods of strings and numbers that make bytes, which nothing here meters and no prompt needs.
_DENIED_METHODS = frozenset(("encode", "to_bytes", "from_bytes"))


class ChatTemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Compiles templates whose every growth asks the budget that `rendering` has set for the thread."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would run template code at compile time
            extensions=[jinja2.ext.loopcontrols, _GenerationTag],
            finalize=self._finalize,
        )
        self._local = threading.local()
        self.filters["tojson"] = _to_json
        for name, function in list(self.filters.items()):
            self.filters[name] = self._metered_filter(name, function)
        self.globals.pop("lipsum", None)
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @property
    def budget(self) -> TemplateBudget:
        return cast(TemplateBudget, self._local.budget)

    @budget.setter
    def budget(self, budget: TemplateBudget) -> None:
        self._local.budget = budget

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the output of a block, macro or template."""
        taken: list[str] = []
        for piece in pieces:
            self.budget.charge(len(piece))
            taken.append(piece)
        return "".join(taken)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.charge(_binop_size(self.budget, operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: jinja2.runtime.Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self.budget
        budget.check_time()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = tuple(list(__self._counted(arg)) if isinstance(arg, Iterator) else arg for arg in args)
            budget.charge(expanded_size(budget, getattr(__obj, "__name__", ""), owner, args, kwargs))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, (str, list, tuple, dict)):
            budget.charge(len(result))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _DENIED_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        template = value.__self__

        def metered(*args: Any, **kwargs: Any) -> str:
            self.budget.charge(brace_format_size(self.budget, template, (*args, *kwargs.values())))
            return wrapped(*args, **kwargs)

        return metered

    def guarded_iteration(self, iterable: Any) -> Any:
        """Count a loop's turns; wraps what every `for` iterates over."""
        if isinstance(iterable, jinja2.Undefined):
            return iterable
        return _CountedIterable(iterable, self)

    def guarded_slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        part = value[start:stop:step]
        self.budget.charge(len(part))
        return part

    def guarded_concat(self, *values: Any) -> str:
        """The `~` operator."""
        for value in values:
            self.budget.charge_value(value)
        return "".join(str(value) for value in values)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        return cast(jinja2.nodes.Template, _Guarder().visit(template))

    def _finalize(self, value: Any) -> Any:
        self.budget.charge_value(value)
        return value

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        if len(numbers) > MAX_RANGE:
            raise InvalidRequestError(
                f"the chat template asks for a range of {len(numbers)} numbers; at most {MAX_RANGE} are allowed",
                "chat_template",
            )
        self.budget.charge(len(numbers))
        return numbers

    def _metered_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # Filters that want the context, the evaluation context or the environment get it as first argument.
        num_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0

        def metered(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.check_time()
            hidden, (value, *rest) = args[:num_hidden], args[num_hidden:]
            if isinstance(value, Iterator) and name in BOUNDS:
                value = list(self._counted(value))  # its size decides what the filter may cost
            budget.charge(expanded_size(budget, name, value, rest, kwargs))
            result = function(*hidden, value, *rest, **kwargs)
            if isinstance(result, (str, list, tuple, dict)):
                budget.charge(len(result))
            return self._counted(result) if isinstance(result, Iterator) else result

        if num_hidden:
            metered.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return metered

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.charge(1)
            yield value


class _CountedIterable:
    """An iterable whose turns are counted; as long as the one it wraps, so that `loop.length` works."""

    def __init__(self, iterable: Any, environment: ChatTemplateEnvironment) -> None:
        self._iterable = iterable
        self._environment = environment

    def __len__(self) -> int:
        return len(self._iterable)

    def __iter__(self) -> Iterator[Any]:
        budget = self._environment.budget
        for item in self._iterable:
            budget.tick()
            yield item


class _Guarder(jinja2.visitor.NodeTransformer):
    """Puts the environment's guards around what Jinja compiles to bare Python."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.For:
        self.generic_visit(node)
        node.iter = _guard("guarded_iteration", [node.iter])
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return _guard("guarded_concat", node.nodes)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, jinja2.nodes.Slice):
            return node
        bounds = [bound or jinja2.nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _guard("guarded_slice", [node.node, *bounds])


def _guard(method: str, arguments: list[Any]) -> jinja2.nodes.Call:
    return jinja2.nodes.Call(jinja2.nodes.EnvironmentAttribute(method), arguments, [], None, None)


class _GenerationTag(jinja2.ext.Extension):
    """Accepts {% generation %} ... {% endgeneration %}, which marks the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _binop_size(budget: TemplateBudget, operator: str, left: Any, right: Any) -> int:
    """Return the size of a binary operator's result; refuses integers that would grow without end."""
    if operator == "%" and isinstance(left, str):
        return percent_format_size(budget, left, right if isinstance(right, tuple) else (right,))
    if operator == "+":
        return len(left) + len(right) if _has_length(left) and _has_length(right) else 0
    if operator == "*" and (_has_length(left) or _has_length(right)):
        sequence, count = (left, right) if _has_length(left) else (right, left)
        return len(sequence) * max(int(count), 0) if isinstance(count, int) else 0
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * abs(right)
        if bits > MAX_INTEGER_BITS:
            raise InvalidRequestError(
                f"the chat template computes a number of {bits} bits; at most {MAX_INTEGER_BITS} are allowed",
                "chat_template",
            )
    return 0


def _has_length(value: Any) -> bool:
    return isinstance(value, (str, list, tuple))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as it is: Jinja's own filter would escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Refused(jinja2.TemplateError):
    """A template called raise_exception: it does not take this conversation."""


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _strftime_now(form: str) -> str:
    if len(form) > 1000 or re.search(r"%[^a-zA-Z%]*\d{4}", form):
        raise InvalidRequestError("the chat template's date format is too long", "chat_template")
    return datetime.now().strftime(form)


class CompiledTemplate:
    """A template's source, compiled. Raises InvalidRequestError for one that is not valid Jinja, or too long.

    content_format: "openai" if the template loops over a message's content, else "string"
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARACTERS or source.count("{{") + source.count("{%") > MAX_SOURCE_TAGS:
            raise InvalidRequestError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARACTERS} characters and "
                f"{MAX_SOURCE_TAGS} tags are allowed",
                "chat_template",
            )
        _environment.budget = TemplateBudget()
        try:
            tree = _environment.parse(source)
            self.content_format = find_content_format(tree)
            code = _environment.compile(tree)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError) as error:
            raise InvalidRequestError(f"the chat template is not valid Jinja: {error}", "chat_template") from error
        self._template = jinja2.Template.from_code(_environment, code, _environment.make_globals(None))

    def render(self, variables: Mapping[str, Any], budget: TemplateBudget) -> str:
        """Render within the budget. Whatever goes wrong inside the template is an InvalidRequestError."""
        _environment.budget = budget
        try:
            return _environment.concat(self._template.generate(**variables))
        except InvalidRequestError:
            raise
        except _Refused as refusal:
            raise InvalidRequestError(
                f"the chat template refuses this conversation: {str(refusal)[:_MAX_QUOTED]}", "messages"
            ) from None
        except Exception as error:  # anything can happen in a template: it is a program
            raise InvalidRequestError(
                f"the chat template failed on this conversation: {type(error).__name__}: {str(error)[:_MAX_QUOTED]}",
                "chat_template",
            ) from error


def find_content_format(template: jinja2.nodes.Template) -> Literal["string", "openai"]:
    """Return "openai" if some loop runs over something's `content`, directly or through an assigned name."""
    content_names = {"content"}
    for assign in template.find_all(jinja2.nodes.Assign):
        if isinstance(assign.target, jinja2.nodes.Name) and _is_content(assign.node, content_names):
            content_names.add(assign.target.name)
    loops = template.find_all(jinja2.nodes.For)
    return "openai" if any(_is_content(_loop_source(loop.iter), content_names) for loop in loops) else "string"


def _loop_source(node: jinja2.nodes.Node) -> jinja2.nodes.Node:
    """Look through the guard that `_Guarder` put around a loop's iterable, and through filters."""
    while True:
        if isinstance(node, jinja2.nodes.Call) and isinstance(node.node, jinja2.nodes.EnvironmentAttribute):
            node = node.args[0]
        elif isinstance(node, jinja2.nodes.Filter) and node.node is not None:
            node = node.node
        else:
            return node


def _is_content(node: jinja2.nodes.Node, content_names: set[str]) -> bool:
    if isinstance(node, jinja2.nodes.Name):
        return node.name in content_names
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Const):
        return bool(node.arg.value == "content")
    return isinstance(node, jinja2.nodes.Getattr) and node.attr == "content"


_environment = ChatTemplateEnvironment()
