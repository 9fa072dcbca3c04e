"""Reference kernels: pages between a pool and staging, in torch, as bytes. They know no format.

What pieces ask of a pool is worked out once, as numbers: a route. `unikv.kernels.moving` then moves
pages along it in one call, as often as they come.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.geometry import Piece
from unikv.kernels.moving import compiled
from unikv.kernels.sources import Parts, Source, find_sources
from unikv.kernels.staging import Staging

# As measured by benchmarks/bench_pack.py: a smaller scratch leaves threads idle, a larger one the
# cache; shorter rows or batches move faster in two copies than in one.
SCRATCH_BYTES = 4 << 20
DIRECT_ROW_BYTES = 512
DIRECT_BATCH_BYTES = 128 << 10

# The dtypes that words are moved as, never the cache's own. float64 scatters twice as fast as int64
# and moves every bit pattern as it is: torch's loop must read its int64 index anew after each int64
# store, as both may be one memory.
_PACKED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNPACKED = {**_PACKED, 8: torch.float64}
_KINDS = {word: kind for kind, word in enumerate(_PACKED)}


def pack(parts: Parts, index: Tensor, staging: Tensor, pieces: Iterable[Piece]) -> None:
    """Copy pages from pool to staging, uint8 (pages, page bytes), once; see `Route`."""
    Route.of(parts, pieces).pack(index, _staged(staging))


def unpack(parts: Parts, index: Tensor, staging: Tensor, pieces: Iterable[Piece]) -> None:
    """Copy pages from staging, uint8 (pages, page bytes), to pool once; see `Route`."""
    Route.of(parts, pieces).unpack(index, _staged(staging))


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The way of pages between one pool and staging, with the numbers that `moving.move` takes."""

    found: list[Source]
    word: int  # bytes that staging's address and its step from page to page are a multiple of
    packed: list[Tensor]  # of each source the first word of its memory
    unpacked: list[Tensor]
    grids: list[list[int]]
    sources: list[list[int]]
    combs: list[list[int]]
    fits: set[tuple[object, ...]]  # devices and sizes that were checked
    narrowed: dict[int, "Route"]  # by the word of a staging that is aligned to less

    @classmethod
    def of(cls, parts: Parts, pieces: Iterable[Piece]) -> "Route":
        """Work out a route.

        Args:
            parts: the pool, as `unikv.paged.PagedCache.parts`.
            pieces: what to copy of each page, and where it lies in the page's staging.

        Raises:
            PoolError: a piece lies outside of the pool.
        """
        return cls._of(list(find_sources(parts, pieces)), 8)

    @classmethod
    def _of(cls, found: list[Source], staging_word: int) -> "Route":
        route = cls(found, staging_word, [], [], [], [], [], set(), {})
        grids: dict[tuple[int, ...], int] = {}
        for source in found:
            word = source.word(staging_word)
            grid = grids.setdefault(source.grid(word), len(grids))
            first = len(route.combs)
            route.combs.extend(source.comb_numbers(word))
            ends = first, len(route.combs)
            route.sources.append([_KINDS[word], grid, *source.numbers(word), *ends])
            with torch.inference_mode(mode=False):  # for calls in that mode and outside of it
                begin = source.pool.as_strided((word,), (1,), 0)
                route.packed.append(begin.view(_PACKED[word]))
                route.unpacked.append(begin.view(_UNPACKED[word]))
        route.grids.extend(map(list, grids))
        return route

    def pack(self, index: Tensor, staging: Staging) -> None:
        """Copy pages from pool to staging; bytes of staging outside the pieces stay as they are.

        Args:
            index: int64 (pages, blocks a page), block ids as `unikv.paged.PagedCache.index` gives.
            staging: as many pages, on the pool's device.

        Raises:
            PoolError: an argument has a wrong dtype, shape, device or value, or a piece lies
                outside of a page's staging. Nothing was copied then.
        """
        self._move(index, staging, packing=True)

    def unpack(self, index: Tensor, staging: Staging) -> None:
        """Copy pages from staging to pool; rows and heads of the pool outside the pieces stay.

        Takes and raises what `pack` does. No block may be named twice: what it then holds is
        undefined.
        """
        self._move(index, staging, packing=False)

    def _move(self, index: Tensor, staging: Staging, *, packing: bool) -> None:
        _check_arguments(index, staging)
        if not (index.shape[0] and self.found):
            return None
        if (sizes := (index.device, index.shape[1], staging.page_bytes)) not in self.fits:
            for source in self.found:
                _check_source(source, index, staging)
            self.fits.add(sizes)
        if not staging.page_bytes:  # no piece has a row in such pages
            return None
        if (word := staging.word) < self.word:
            if word not in self.narrowed:
                self.narrowed[word] = self._of(self.found, word)
            narrow = self.narrowed[word]
            return narrow.pack(index, staging) if packing else narrow.unpack(index, staging)
        blocks = min(source.pool.shape[0] for source in self.found)
        limits = [blocks, SCRATCH_BYTES, DIRECT_ROW_BYTES, DIRECT_BATCH_BYTES]
        dtypes, pools = (_PACKED, self.packed) if packing else (_UNPACKED, self.unpacked)
        used = {source[0] for source in self.sources}
        stagings = [
            staging.memory.words(dtype if kind in used else torch.uint8)
            for kind, dtype in enumerate(dtypes.values())
        ]
        staged = [staging.place, staging.step]
        low, high, _ = compiled()(
            packing, pools, stagings, staged, self.grids, self.sources, self.combs, index, limits
        )
        if not 0 <= low <= high < blocks:
            raise PoolError(f"index of blocks {low}..{high}: want them in 0..{blocks - 1}")
        return None


def _check_source(source: Source, index: Tensor, staging: Staging) -> None:
    """Check that a source's pieces of so many rows lie in a page's staging."""
    pool, width = source.pool, source.pool.shape[3]
    if pool.device != index.device:
        raise PoolError(f"index on {index.device}: want it on {pool.device}, as the pool")
    rows = source.phase.size(index.shape[1] * pool.shape[1])
    for _, comb in source.combs:
        row, last_row = comb.heads * width, (rows - 1) * comb.row_bytes
        stop = comb.offset + (comb.groups - 1) * comb.step + last_row + row
        if rows and (
            comb.offset < 0 or stop > staging.page_bytes or (rows > 1 and comb.row_bytes < row)
        ):
            raise PoolError(
                f"piece at bytes {comb.offset}..{stop} with rows of {comb.row_bytes} bytes: want "
                f"it in a page's {staging.page_bytes} bytes of staging, rows of {row} bytes or more"
            )


def _check_arguments(index: Tensor, staging: Staging) -> None:
    if index.dtype != torch.int64 or index.dim() != 2 or not index.shape[1]:
        raise PoolError(
            f"index of {index.dtype} {tuple(index.shape)}: want int64 (pages, blocks a page)"
        )
    if staging.pages != index.shape[0]:
        raise PoolError(f"staging of {staging.pages} pages: want {len(index)}, as the index")
    if staging.pages > 1 and staging.step < staging.page_bytes:
        raise PoolError(
            f"staging of pages {staging.step} bytes apart: want {staging.page_bytes}, what a page "
            "has, or more"
        )
    if staging.device != index.device:
        raise PoolError(f"index on {index.device}: want it on {staging.device}, as staging")


def _staged(staging: Tensor) -> Staging:
    if staging.dtype != torch.uint8 or staging.dim() != 2 or staging.stride(1) != 1:
        raise PoolError(
            f"staging of {staging.dtype} {tuple(staging.shape)}, strides {staging.stride()}: "
            "want uint8 (pages, page bytes), bytes of a page contiguous"
        )
    return Staging.of(staging)
