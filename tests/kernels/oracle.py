"""The copies of pack and unpack, one row of one head at a time, in numpy. It calls no kernel."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from tests.kernels.pools import POISON, Bytes, Layers
from unikv.geometry import Phase, Piece

Table: TypeAlias = Sequence[Sequence[int]]  # by page: the blocks of the data's arrays


class Place(NamedTuple):
    """Where one row of one head lies on both sides."""

    page: int
    byte: int  # in the page's staging
    block: int
    token: int
    head: int


def places(piece: Piece, table: Table, array: Bytes) -> Iterator[Place]:
    """Yield the place of each row and head of a piece, from the words of `Piece` itself."""
    _, tokens, _, width = array.shape
    for page, blocks in enumerate(table):
        rows = [(block, token) for block in blocks for token in range(tokens)]
        phase = piece.phase
        wanted = [
            x for t, x in enumerate(rows) if t // phase.interleave % phase.count == phase.index
        ]
        for r, (block, token) in enumerate(wanted):
            for h in range(piece.heads):
                at = piece.offset + r * piece.row_bytes + h * width
                yield Place(page, at, block, token, piece.head + h)


def pack_slowly(data: Layers, table: Table, pieces: Sequence[Piece], page_bytes: int) -> Bytes:
    """Return the staging that pack must leave, poison where no piece lies."""
    staging = np.full((len(table), page_bytes), POISON, dtype=np.uint8)
    for piece in pieces:
        array = data[piece.layer][piece.part]
        width = array.shape[3]
        for page, at, block, token, head in places(piece, table, array):
            staging[page, at : at + width] = array[block, token, head]
    return staging


def unpack_slowly(data: Layers, table: Table, pieces: Sequence[Piece], staging: Bytes) -> None:
    """Change ``data`` as unpack must change a pool."""
    for piece in pieces:
        array = data[piece.layer][piece.part]
        width = array.shape[3]
        for page, at, block, token, head in places(piece, table, array):
            array[block, token, head] = staging[page, at : at + width]


def chunk_pieces(
    data: Layers,
    page_rows: int,
    *,
    groups: int = 1,
    cuts: Sequence[int] = (),
    phases: int = 1,
    interleave: int = 1,
    gap: int = 0,
) -> tuple[list[Piece], int]:
    """Return a page's pieces, cut by head groups, layers and phases, and its staging bytes.

    Each chunk begins ``gap`` bytes behind the one before, and a page ends ``gap`` bytes later.
    """
    heads = data[0][0].shape[2] // groups
    pieces, at = list[Piece](), 0
    for group in range(groups):
        for start, stop in pairwise([0, *cuts, len(data)]):
            for index in range(phases):
                phase = Phase(index, phases, interleave)
                at += gap
                for layer in range(start, stop):
                    for part, array in enumerate(data[layer]):
                        row = heads * array.shape[3]
                        pieces.append(Piece(layer, part, group * heads, heads, phase, at, row))
                        at += len(phase.tokens(page_rows)) * row
    return pieces, at + gap
