"""Block hashes: equal exactly for equal content over the whole prefix."""

from __future__ import annotations

from octavo.kv_cache.hashing import extend_block_hashes, root_hash


def hashes(token_ids, block_size=4, salt=None, adapter=None):
    result: list[bytes] = []
    extend_block_hashes(result, token_ids, block_size, root_hash(salt, adapter))
    return result


def test_only_full_blocks_are_hashed():
    assert [len(hashes(range(count))) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_growing_the_sequence_gives_the_same_hashes_as_hashing_it_whole():
    tokens = [i * i % 97 for i in range(23)]
    grown: list[bytes] = []
    for end in range(len(tokens) + 1):
        extend_block_hashes(grown, tokens[:end], 4, root_hash())
    assert grown == hashes(tokens)


def test_a_hash_depends_on_everything_before_it():
    base = hashes([1, 2, 3, 4, 5, 6, 7, 8])
    other = hashes([1, 2, 3, 9, 5, 6, 7, 8])
    assert base[0] != other[0]
    assert base[1] != other[1]


def test_salt_and_adapter_separate_the_whole_chain():
    tokens = list(range(8))
    chains = [
        hashes(tokens),
        hashes(tokens, salt="a"),
        hashes(tokens, salt="b"),
        hashes(tokens, salt=""),
        hashes(tokens, adapter="a"),
        hashes(tokens, salt="a", adapter="a"),
    ]
    assert len({value for chain in chains for value in chain}) == 12


def test_key_values_cannot_be_confused_by_concatenation():
    assert root_hash("ab", "c") != root_hash("a", "bc")


def test_large_token_ids_are_not_truncated():
    assert hashes([2**31 - 1, 256, 0, 0]) != hashes([255, 256, 0, 0])


def test_hashes_are_the_same_in_every_process():
    """Routers and other engines compare them: no per-process seed may enter."""
    assert hashes([1, 2, 3, 4])[0].hex() == EXPECTED


EXPECTED = "6e685ec9c7d5fdb3f826fd8d949f05e55d2196028f9ea21f1673d20e3075efb4"
