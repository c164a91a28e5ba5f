"""Token ids -> text, one step at a time: what is emitted never changes afterwards, and is never half a character.

Ours rather than the `tokenizers` library's DecodeStream: that one decodes its window again at every token, and fails
("invalid prefix") when bytes turn out not to be UTF-8. Here a token is one dictionary look-up, and only bytes of an
unfinished character (at most three) are held back.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.tokenizers.pieces import REPLACEMENT_CHARACTER, DecoderRules, TokenPieces

# A prompt may end inside a character; UTF-8 characters have at most four bytes, so three tokens can hold the part.
_MAX_PARTIAL_BYTES = 3


class IncrementalDetokenizer:
    """The text of one sequence that continues a prompt.

    The joined increments, `finish()` included, equal the decoding of prompt and output together without the decoding
    of the prompt. An unfinished or invalid character comes out as U+FFFD once it is certain that it is one.
    """

    __slots__ = ("_errors", "_pending", "_pieces", "_strip_left")

    def __init__(self, pieces: TokenPieces, rules: DecoderRules, prompt_token_ids: Sequence[int] = ()) -> None:
        """pieces: the table for the wanted `skip_special_tokens` (see Tokenizer.detokenizer)."""
        self._pieces = pieces
        self._errors = "replace" if rules.byte_level else _ONE_MARK_PER_BYTE
        self._pending = _partial_character(pieces, prompt_token_ids)
        # Spaces that the decoder takes off the start of the text: ours to take off only if the prompt has no text.
        at_start = rules.strip_left > 0 and not any(pieces[token_id] for token_id in prompt_token_ids)
        self._strip_left = rules.strip_left if at_start else 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that they complete (may be empty)."""
        if len(token_ids) == 1 and not self._pending and not self._strip_left:
            piece = self._pieces[token_ids[0]]
            if piece.__class__ is str:
                return piece
        return self._push_slowly(token_ids)

    def finish(self) -> str:
        """Return the rest: U+FFFD if the output ends inside a character, otherwise nothing."""
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", self._errors)

    def _push_slowly(self, token_ids: Sequence[int]) -> str:
        texts: list[str] = []
        pending = self._pending
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if not piece:
                continue
            if isinstance(piece, bytes):
                pending += piece
                text, num_used = codecs.utf_8_decode(pending, self._errors, False)
                pending = pending[num_used:]
            else:
                text = pending.decode("utf-8", self._errors) + piece if pending else piece
                pending = b""
            if self._strip_left:
                text = self._strip(text)
            texts.append(text)
        self._pending = pending
        return "".join(texts)

    def _strip(self, text: str) -> str:
        """Take the decoder's leading spaces off, while they last; any other character ends the stripping."""
        kept = text.lstrip(" ")
        num_spaces = min(len(text) - len(kept), self._strip_left)
        self._strip_left = 0 if kept else self._strip_left - num_spaces
        return text[num_spaces:]


def _partial_character(pieces: TokenPieces, prompt_token_ids: Sequence[int]) -> bytes:
    """Return the bytes of the unfinished character at a prompt's end."""
    tail = b""
    for token_id in reversed(prompt_token_ids):
        piece = pieces[token_id]
        if isinstance(piece, str):
            if piece:
                break
            continue
        tail = piece + tail
        if len(tail) > _MAX_PARTIAL_BYTES:
            break
    _, num_used = codecs.utf_8_decode(tail, "replace", False)
    return tail[num_used:]


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Give one U+FFFD per undecodable byte, as the `tokenizers` library does for byte tokens."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT_CHARACTER * (error.end - error.start), error.end


_ONE_MARK_PER_BYTE = "octavo.one_mark_per_byte"
codecs.register_error(_ONE_MARK_PER_BYTE, _replace_each_byte)
