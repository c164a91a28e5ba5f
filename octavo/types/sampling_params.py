"""SamplingParams (being written)."""

import msgspec


class SamplingParams(msgspec.Struct):
    n: int = 1
