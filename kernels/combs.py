"""Comb: pieces at equal distances, which one copy can move. It knows no tensor.

A plan has a piece for each chunk, layer and part. Chunks that differ in their heads alone lie at
equal distances in staging, so that one strided copy moves them, and one pass reads the pool.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unikv.geometry import Phase, Piece


class Comb(NamedTuple):
    """``groups`` pieces at equal distances in staging, each of ``heads`` heads."""

    head: int  # the first one, from the first head of the strip
    heads: int
    groups: int
    offset: int  # bytes, in a page's staging
    step: int  # bytes from one piece to the next; 0 for a single one
    row_bytes: int


class Strip(NamedTuple):
    """Adjacent heads of one pool tensor, and the combs that they move in."""

    layer: int
    part: int
    phase: Phase
    head: int  # the first head, in the pool
    heads: int
    combs: list[Comb]


def cut_strips(pieces: Sequence[Piece]) -> Iterator[Strip]:
    """Yield strips that hold each piece once."""
    alike: dict[tuple[int, int, Phase], list[Piece]] = {}
    for piece in pieces:
        alike.setdefault((piece.layer, piece.part, piece.phase), []).append(piece)
    for (layer, part, phase), members in alike.items():
        members.sort(key=lambda piece: piece.head)
        for adjacent in _adjacent(members):
            head, last = adjacent[0].head, adjacent[-1]
            heads = last.head + last.heads - head
            yield Strip(layer, part, phase, head, heads, _join(adjacent))


def _adjacent(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Cut pieces, ordered by head, where one does not begin at the end of the one before."""
    first = 0
    for i in range(1, len(pieces) + 1):
        before = pieces[i - 1]
        if i == len(pieces) or pieces[i].head != before.head + before.heads:
            yield list(pieces[first:i])
            first = i


def _join(pieces: Sequence[Piece]) -> list[Comb]:
    """Return combs for adjacent pieces; one joins the comb before it where the step fits."""
    base, combs = pieces[0].head, list[Comb]()
    for piece in pieces:
        if combs:
            last = combs[-1]
            step = piece.offset - last.offset - (last.groups - 1) * last.step
            alike = (last.heads, last.row_bytes) == (piece.heads, piece.row_bytes)
            if alike and step > 0 and last.step in (0, step):
                combs[-1] = last._replace(groups=last.groups + 1, step=step)
                continue
        combs.append(Comb(piece.head - base, piece.heads, 1, piece.offset, 0, piece.row_bytes))
    return combs
