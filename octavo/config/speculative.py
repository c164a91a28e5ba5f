"""How tokens are guessed ahead: the decision, under the names of vLLM's speculative_config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SpeculativeMethod = Literal["ngram", "suffix", "draft_model", "medusa", "eagle", "eagle3", "mtp"]


@dataclass(frozen=True)
class SpeculativeConfig:
    """What guesses, and how much at most.

    num_speculative_tokens: most guesses for a request in one step
    prompt_lookup_min, prompt_lookup_max: ngram: sizes of the n-grams that are looked for
    num_speculative_tokens_per_batch_size: (least batch size, greatest, most guesses)
    suffix_decoding_max_tree_depth: longest context that is compared
    suffix_decoding_max_cached_requests: past outputs that are kept; 0: none
    suffix_decoding_max_spec_factor: guesses for each token of context that was found
    model, revision: what guesses, where it has weights, named as the served model is; None: they lie beside that's
    suffix_decoding_min_token_prob: how often a guess must have followed, as a share, all guesses before it included
    """

    method: SpeculativeMethod
    num_speculative_tokens: int
    prompt_lookup_min: int = 5
    prompt_lookup_max: int = 5
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1
    model: str | None = None
    revision: str | None = None

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots that a request needs beyond its step's tokens: for the keys of guesses, where guessing stores some."""
        return self.num_speculative_tokens if self.method in ("draft_model", "eagle", "eagle3", "mtp") else 0
