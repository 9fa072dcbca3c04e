"""Source: heads of a pool tensor as numbers, and the combs that they move in. It moves nothing."""

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import NamedTuple, TypeAlias

from torch import Tensor

from unikv.errors import PoolError
from unikv.geometry import Phase, Piece
from unikv.kernels.combs import Comb, Strip, cut_strips

Parts: TypeAlias = Sequence[Sequence[Tensor]]
"""Pool views by layer and part: uint8 (blocks, block_tokens, heads, width), width contiguous."""


class Source(NamedTuple):
    """Heads of one pool tensor, or of two whose rows interleave ("parts"). Steps are in bytes."""

    pool: Tensor
    head: int  # the first one
    heads: int
    parts: int
    part_step: int
    phase: Phase
    combs: list[tuple[int, Comb]]  # the part, counted from the first one here

    def word(self, staging_word: int) -> int:
        """Return the most bytes, up to 8, that divide all its addresses, steps and lengths."""
        numbers = [n for _, comb in self.combs for n in (comb.offset, comb.step, comb.row_bytes)]
        begin = self.pool.untyped_storage().data_ptr()
        width = self.pool.shape[3]
        return gcd(8, staging_word, begin, self._at, self.part_step, *self._steps, width, *numbers)

    def grid(self, word: int) -> tuple[int, ...]:
        """Return what the places of its rows depend on, as `moving.find_runs` takes it."""
        block, token, _ = self._steps
        phase = self.phase
        tokens = self.pool.shape[1]
        return block // word, token // word, tokens, phase.index, phase.count, phase.interleave

    def numbers(self, word: int) -> list[int]:
        """Return the middle of its row in the sources of `moving.move`."""
        block, token, head = self._steps
        last = (self.pool.shape[0] - 1) * block + (self.pool.shape[1] - 1) * token
        at, part, width = self._at // word, self.part_step // word, self.pool.shape[3] // word
        return [at, self.parts, part, last // word, self.heads, head // word, width]

    def comb_numbers(self, word: int) -> list[list[int]]:
        """Return its combs as `moving.move` takes them."""
        return [
            [
                *(part, comb.head, comb.heads, comb.groups),
                *(comb.offset // word, comb.step // word, comb.row_bytes // word),
            ]
            for part, comb in self.combs
        ]

    @property
    def _at(self) -> int:
        """Where the first row begins in the tensor's storage."""
        return int(self.pool.storage_offset()) + self.head * self.pool.stride(2)

    @property
    def _steps(self) -> tuple[int, int, int]:
        """From block to block, token to token and head to head; 0 where there is only one."""
        blocks, tokens, *_ = self.pool.shape
        block, token, head, _ = self.pool.stride()
        return (block * (blocks > 1), token * (tokens > 1), head * (self.heads > 1))


def find_sources(parts: Parts, pieces: Iterable[Piece]) -> Iterator[Source]:
    """Yield what pieces take from a pool, K and V as one where their rows interleave.

    Raises:
        PoolError: a piece lies outside of the pool.
    """
    last: Source | None = None
    for strip in cut_strips(list(pieces)):
        pool = _pool_of(parts, strip)
        if last is not None:
            if last.parts == 1 and (step := _interleaved(last, strip, pool)):
                combs = [*last.combs, *((1, comb) for comb in strip.combs)]
                yield last._replace(parts=2, part_step=step, combs=combs)
                last = None
                continue
            yield last
        combs = [(0, comb) for comb in strip.combs]
        last = Source(pool, strip.head, strip.heads, 1, 0, strip.phase, combs)
    if last is not None:
        yield last


def _interleaved(source: Source, strip: Strip, pool: Tensor) -> int:
    """Return how far a strip's rows lie behind a source's, 0 unless each lies between two."""
    first = source.pool
    if (source.phase, source.head, source.heads) != (strip.phase, strip.head, strip.heads):
        return 0
    if (pool.shape, pool.stride()) != (first.shape, first.stride()):
        return 0
    mine, other = pool.untyped_storage(), first.untyped_storage()
    if (mine.data_ptr(), mine.nbytes()) != (other.data_ptr(), other.nbytes()):
        return 0
    step = int(pool.storage_offset()) - int(first.storage_offset())
    return step if 0 < step < first.stride(0) else 0


def _pool_of(parts: Parts, strip: Strip) -> Tensor:
    """Return the pool tensor that a strip names."""
    layer, part, stop = strip.layer, strip.part, strip.head + strip.heads
    if not (0 <= layer < len(parts) and 0 <= part < len(parts[layer])):
        raise PoolError(f"piece of layer {layer}, part {part}: want one of {len(parts)} layers")
    pool = parts[layer][part]
    if (fewest := min(comb.heads for comb in strip.combs)) < 1:
        raise PoolError(f"piece of {fewest} heads: want 1 or more")
    if not 0 <= strip.head < stop <= pool.shape[2]:
        raise PoolError(f"piece of heads {strip.head}..{stop}: want them in 0..{pool.shape[2]}")
    return pool
