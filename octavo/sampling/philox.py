"""Counter-based random numbers: a draw is a function of (seed, position) and nothing else.

Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. The key is the request's seed,
the counter its position, so a draw depends on no other request and on nothing that was drawn before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)
_NUM_ROUNDS = 10
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_ROUND_KEY_STEPS = _KEY_STEPS * np.arange(_NUM_ROUNDS, dtype=np.uint64)[:, None, None]  # [rounds, 2, 1]


def philox4x32(counters: UInt64, keys: UInt64) -> UInt64:
    """Return the 4 random words of each counter: counters [4, N], keys [2, N], result [4, N], all 32-bit values."""
    # a round multiplies words 0 and 2, mixes the high halves crosswise into words 1 and 3, and swaps the roles
    multiplied, mixed = counters[0::2], counters[1::2]  # [2, N] each
    round_keys = (keys + _ROUND_KEY_STEPS) & _LOW_WORD  # [rounds, 2, N]
    for round_key in round_keys:
        products = multiplied * _MULTIPLIERS
        multiplied = (products[::-1] >> _WORD_BITS) ^ mixed ^ round_key
        mixed = products[::-1] & _LOW_WORD
    return np.stack((multiplied[0], mixed[0], multiplied[1], mixed[1]))


def uniform(seeds: UInt64, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a float64 in [0, 1) of 53 random bits per row: seeds [N], positions [N] (token index in the sequence)."""
    places = positions.astype(np.uint64)
    counters = np.zeros((4, len(seeds)), np.uint64)
    counters[0] = places & _LOW_WORD
    counters[1] = places >> _WORD_BITS
    keys = np.stack((seeds & _LOW_WORD, seeds >> _WORD_BITS))
    words = philox4x32(counters, keys)
    bits = (words[0] << np.uint64(21)) ^ (words[1] >> np.uint64(11))
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers
