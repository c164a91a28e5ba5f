"""Buckets of distances between tokens, each with a bias of its own: near ones exact, far ones together.

As in T5 (Raffel et al., arXiv:1910.10683), whose scheme MPNet has.
"""

from __future__ import annotations

import numpy as np

from octavo.ops.interface import Int

_FARTHEST = 128  # tokens from here on share a bucket


def distance_buckets(num_buckets: int, reach: int) -> Int:
    """Return the bucket of a key at each distance from the query, 1 - reach .. reach - 1 tokens behind it.

    Half of the buckets are for keys behind the query; of each half the first half holds one distance each, and the rest
    grow by a constant factor up to 128 tokens.
    """
    behind = np.arange(1 - reach, reach)
    per_side = num_buckets // 2
    exact = per_side // 2
    distance = np.abs(behind)
    growth = np.log(np.maximum(distance, 1) / exact) / np.log(_FARTHEST / exact)
    # a distance on a border must not fall below it for a rounding
    far = np.minimum(exact + np.floor(growth * (per_side - exact) + 1e-6).astype(np.int64), per_side - 1)
    bucket = np.where(distance < exact, distance, far) + np.where(behind > 0, per_side, 0)
    return bucket.astype(np.int32)
