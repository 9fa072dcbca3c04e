"""Sharding: which rank owns a page under page-sharded CP, and where it lies. It knows no pool.

With N ranks, pages of p tokens and a logical slot x: page q = x // p, owner r = q mod N, local row
(q // N) * p + x mod p. The functions take ints and integer arrays (numpy, torch) alike.
Source: seeds of the project, "page-sharded KV" (SGLang's CP page sharding).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsInt, TypeVar

from unikv.errors import TopologyError

_T = TypeVar("_T", bound=Any)  # int or an integer array: whatever has //, % and *


class Shard(NamedTuple):
    """One rank's place among the ranks that own pages in turn; (0, 1) where each has them all."""

    rank: int
    ranks: int


def owner(slot: _T, page_tokens: int, ranks: int) -> _T:
    """Return the rank that owns each logical slot."""
    rank: _T = slot // page_tokens % ranks
    return rank


def local_row(slot: _T, page_tokens: int, ranks: int) -> _T:
    """Return the row of each logical slot in its owner's pool."""
    row: _T = slot // page_tokens // ranks * page_tokens + slot % page_tokens
    return row


def rotation(owners: Iterable[SupportsInt], ranks: int) -> int:
    """Return the rotation b of a path whose page P is owned by rank (b + P) mod ``ranks``.

    An empty path has rotation 0.

    Raises:
        TopologyError: the owners do not go round; names the first page that breaks it.
    """
    path = [int(rank) for rank in owners]
    first = path[0] if path else 0
    for page, rank in enumerate(path):
        if rank != (first + page) % ranks:
            raise TopologyError(
                f"page {page} of the path is owned by rank {rank}: want rank "
                f"{(first + page) % ranks}, since page 0 is owned by rank {first} of {ranks}"
            )
    return first


def may_join(prefix: Iterable[SupportsInt], suffix: Iterable[SupportsInt], ranks: int) -> bool:
    """Tell whether a path with owners ``suffix`` may follow one with owners ``prefix``.

    Each must go round by itself (`rotation`); joined, they must still.
    """
    before, behind = list(prefix), list(suffix)
    expected = (rotation(before, ranks) + len(before)) % ranks
    begins = rotation(behind, ranks)
    return not before or not behind or begins == expected
