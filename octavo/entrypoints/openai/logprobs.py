"""Log-probabilities in the two shapes of OpenAI's API: parallel lists for completions, objects for chats."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from octavo.entrypoints.openai.protocol.chat import ChatLogprobs, TokenCandidate, TokenLogprob
from octavo.entrypoints.openai.protocol.completions import CompletionLogprobs
from octavo.tokenizers.tokenizer import Tokenizer
from octavo.types.outputs import Logprob, LogprobsOnePosition, PromptLogprobs

LEAST_LOGPROB = -9999.0  # JSON has no infinity


class TokenNames:
    """What a token is called in a response: the text it adds at its place, or "token_id:N" when asked for.

    Tokens with parts of a character add no text; where two candidates of a position would get the same name, the
    later one is called by its bytes, as in "bytes:\\xf0\\x9f".
    """

    def __init__(self, tokenizer: Tokenizer | None, as_token_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_token_ids = as_token_ids or tokenizer is None

    def of(self, token_id: int, candidate: Logprob) -> str:
        """Return a candidate's name."""
        if self._as_token_ids or candidate.decoded_token is None:
            return f"token_id:{token_id}"
        return candidate.decoded_token

    def of_first(self, token_id: int) -> str:
        """Return the name of a prompt's first token, which has no candidates."""
        return f"token_id:{token_id}" if self._as_token_ids else self.text_of(token_id)

    def text_of(self, token_id: int) -> str:
        """Return what a token reads by itself."""
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "ignore") if self._tokenizer is not None else ""

    def by_bytes(self, token_id: int) -> str:
        """Return the name that is never shared by two tokens with different bytes."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        data = self._tokenizer.token_bytes(token_id)
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data) if data else f"token_id:{token_id}"

    def bytes_of(self, token_id: int) -> list[int] | None:
        """Return a token's true bytes, None without a tokenizer."""
        return list(self._tokenizer.token_bytes(token_id)) if self._tokenizer is not None else None


class CompletionLogprobsWriter:
    """Writes one choice's logprobs piece by piece; offsets go on from piece to piece.

    hidden: special tokens that the generated text leaves out
    """

    def __init__(self, names: TokenNames, hidden: Collection[int]) -> None:
        self._names = names
        self._hidden = hidden
        self._offset = 0  # in characters of the choice's text

    def prompt(self, token_ids: Sequence[int], positions: PromptLogprobs, first_text: str | None) -> CompletionLogprobs:
        """Return the entries of an echoed prompt. first_text: the first token's text if it is not its usual one."""
        logprobs = CompletionLogprobs([], [], [], [])
        name = self._names.of_first(token_ids[0]) if first_text is None else first_text
        self._append(logprobs, name, None, None)
        self._offset += len(self._names.text_of(token_ids[0]) if first_text is None else first_text)
        for token_id, position in zip(token_ids[1:], positions[1:], strict=True):
            self._append_position(logprobs, token_id, position or {}, is_shown=True)
        return logprobs

    def generated(self, token_ids: Sequence[int], positions: Sequence[LogprobsOnePosition]) -> CompletionLogprobs:
        """Return the entries of new tokens."""
        logprobs = CompletionLogprobs([], [], [], [])
        for token_id, position in zip(token_ids, positions, strict=False):
            self._append_position(logprobs, token_id, position, is_shown=token_id not in self._hidden)
        return logprobs

    def _append_position(
        self, logprobs: CompletionLogprobs, token_id: int, position: LogprobsOnePosition, is_shown: bool
    ) -> None:
        candidates: dict[str, float] = {}
        for candidate_id, candidate in position.items():  # the token itself comes first
            name = self._names.of(candidate_id, candidate)
            if name in candidates:
                name = self._names.by_bytes(candidate_id)
            candidates[name] = finite(candidate.logprob)
        own = position[token_id]
        self._append(logprobs, self._names.of(token_id, own), finite(own.logprob), candidates)
        self._offset += len(own.decoded_token or "") if is_shown else 0

    def _append(
        self, logprobs: CompletionLogprobs, name: str, logprob: float | None, candidates: dict[str, float] | None
    ) -> None:
        logprobs.text_offset.append(self._offset)
        logprobs.tokens.append(name)
        logprobs.token_logprobs.append(logprob)
        logprobs.top_logprobs.append(candidates)


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Return the entries of both, in order."""
    return CompletionLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        first.top_logprobs + second.top_logprobs,
    )


def chat_logprobs(
    names: TokenNames, token_ids: Sequence[int], positions: Sequence[LogprobsOnePosition], num_top: int
) -> ChatLogprobs:
    """Return the entries of new tokens, each with its num_top likeliest candidates (-1: all there are)."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=False):
        own = position[token_id]
        top = [
            TokenCandidate(names.of(i, candidate), finite(candidate.logprob), names.bytes_of(i))
            for i, candidate in _likeliest(position.items(), num_top)
        ]
        content.append(TokenLogprob(names.of(token_id, own), finite(own.logprob), names.bytes_of(token_id), top))
    return ChatLogprobs(content)


def finite(logprob: float) -> float:
    """Return a logprob that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def _likeliest(candidates: Iterable[tuple[int, Logprob]], num_top: int) -> list[tuple[int, Logprob]]:
    """Return the candidates of rank num_top or better, best first, and those asked for by id, which have no rank."""
    wanted = [
        (i, candidate)
        for i, candidate in candidates
        if candidate.rank is None or num_top == -1 or candidate.rank <= num_top
    ]
    return sorted(wanted, key=lambda item: item[1].rank or 0)
