"""vLLM's module of this name: `from octavo.inputs import TokensPrompt` works as there."""

from __future__ import annotations

from octavo.types.prompts import PromptType, TextPrompt, TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]
