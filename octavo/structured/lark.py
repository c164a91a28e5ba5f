"""Writing Lark as llguidance reads it."""

from __future__ import annotations

import json


def lark_text(text: str) -> str:
    """Return the literal for a text."""
    # its lexer takes all that JSON's does, except this one character as it is
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else '""'
