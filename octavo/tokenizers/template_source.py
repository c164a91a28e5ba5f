"""Jinja source -> compiled template -> text, within a budget. Compiled templates are kept."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from octavo.tokenizers.template_budget import TemplateBudget

if TYPE_CHECKING:
    from octavo.tokenizers.template_environment import CompiledTemplate


def render_source(source: str, variables: Mapping[str, Any]) -> str:
    """Render a template within a budget of its own; raises InvalidRequestError."""
    budget = TemplateBudget()
    budget = TemplateBudget(input_units=budget.written_size(variables))
    return compile_source(source).render(variables, budget)


@functools.lru_cache(maxsize=32)
def compile_source(source: str) -> CompiledTemplate:
    """Return a template ready to render; raises InvalidRequestError for one that is not valid Jinja, or too long."""
    # Jinja takes long to import and only chats need it.
    from octavo.tokenizers.template_environment import CompiledTemplate

    return CompiledTemplate(source)
