"""Reference kernels: pages between a pool and staging, in torch, as bytes. They know no format.

One gather (or scatter) of windows moves a pool tensor, whatever its layout: straight between pool
and staging where both keep the order of rows and runs are long, else through a scratch of fixed
size in the pool's own order. Then the copies that reorder have one side in cache.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.geometry import Piece
from unikv.kernels.batched import Batches, gather, scatter
from unikv.kernels.combs import Comb, Strip, cut_strips
from unikv.kernels.windows import (
    WORDS,
    Runs,
    Windows,
    as_words,
    find_runs,
    lay_windows,
    steps_of,
    word_bytes,
)

Parts: TypeAlias = Sequence[Sequence[Tensor]]
"""Pool views by layer and part: uint8 (blocks, block_tokens, heads, width), width contiguous."""

# As measured by benchmarks/bench_pack.py: a smaller scratch leaves threads idle, a larger one the
# cache; shorter rows or batches move faster in two copies than in one.
SCRATCH_BYTES = 4 << 20
DIRECT_ROW_BYTES = 512
DIRECT_BATCH_BYTES = 128 << 10


def pack(parts: Parts, index: Tensor, staging: Tensor, pieces: Sequence[Piece]) -> None:
    """Copy pages from pool to staging; bytes of staging outside the pieces stay as they are.

    Args:
        parts: the pool, as `unikv.paged.PagedCache.parts`.
        index: int64 (pages, blocks a page), block ids as `unikv.paged.PagedCache.index` gives.
        staging: uint8 (pages, page bytes), bytes of a page contiguous, on the pool's device.
        pieces: what to copy of each page, and where it lies in the page's staging.

    Raises:
        PoolError: an argument has a wrong dtype, shape, device or value, or a piece lies outside
            of the pool or of a page's staging. Nothing was copied then.
    """
    gather(_batches(_plan_moves(parts, index, staging, pieces)))


def unpack(parts: Parts, index: Tensor, staging: Tensor, pieces: Sequence[Piece]) -> None:
    """Copy pages from staging to pool; rows and heads of the pool outside the pieces stay.

    Takes and raises what `pack` does. No block may be named twice: what it then holds is undefined.
    """
    windows, starts, runs, scratch, stage, counts = _batches(
        _plan_moves(parts, index, staging, pieces)
    )
    wide = [_scatter_view(window) for window in windows], [_scatter_view(run) for run in runs]
    scatter((wide[0], starts, wide[1], scratch, stage, counts))


def _scatter_view(words: Tensor) -> Tensor:
    """View int64 as float64, which scatters twice as fast and moves every bit pattern as it is.

    torch's loop must read its int64 index anew after each int64 store, as both may be one memory.
    """
    return words.view(torch.float64) if words.dtype == torch.int64 else words


def _batches(moves: Sequence["_Move"]) -> Batches:
    """Return the batches of all moves as columns, in order: they share one scratch."""
    batches = [batch for move in moves for batch in move.batches()]
    return (
        [batch.windows for batch in batches],
        [batch.starts for batch in batches],
        [batch.runs for batch in batches],
        [in_scratch for batch in batches for in_scratch, _ in batch.copies],
        [in_staging for batch in batches for _, in_staging in batch.copies],
        [len(batch.copies) for batch in batches],
    )


class _Source(NamedTuple):
    """Heads of one pool tensor, or of two whose rows interleave, and the combs they move in."""

    strip: Strip
    pool: Tensor  # uint8 (parts, blocks, block_tokens, heads, width)
    combs: list[tuple[int, Comb]]  # the part, counted from the first one here


class _Batch(NamedTuple):
    """One gather or scatter of windows, and the copies that reorder what passes the scratch."""

    windows: Tensor  # words (any word of the pool, *axes of a run)
    starts: Tensor  # int64 (runs,)
    runs: Tensor  # words (runs, *axes of a run), in scratch or at once in staging
    copies: list[tuple[Tensor, Tensor]]  # each comb in scratch and in staging


class _Move(NamedTuple):
    """A source, ready to be moved in batches."""

    windows: Windows
    starts: Tensor  # int64 (pages, runs a page)
    combs: list[tuple[int, int, Tensor]]  # part, head, words (pages, runs, rows, groups, heads, w)
    scratch: Tensor  # words, of one page at least; all moves share it

    def batches(self) -> Iterator[_Batch]:
        """Yield what moves all pages."""
        words, (part, row, head) = self.windows
        rows_first = words.shape[1 + part] == 1 and (row < head or words.shape[1 + head] == 1)
        if rows_first and len(self.combs) == 1:
            comb = self.combs[0][2]
            row_bytes = comb[0, 0, 0, 0].nbytes
            if row_bytes >= DIRECT_ROW_BYTES and comb[:, 0].nbytes >= DIRECT_BATCH_BYTES:
                return self._direct_batches(comb)
        return self._scratch_batches()

    def _direct_batches(self, comb: Tensor) -> Iterator[_Batch]:
        """Yield one batch for each run of a page: where both sides keep the order of rows."""
        words, (_, row, head) = self.windows
        heads = comb.shape[4]
        row_step, head_step = words.stride(1 + row), words.stride(1 + head)
        windows = words.as_strided(
            (len(words), *comb.shape[2:]), (1, row_step, heads * head_step, head_step, 1)
        )
        for run, starts in enumerate(self.starts.t().contiguous()):
            yield _Batch(windows, starts, comb[:, run], [])

    def _scratch_batches(self) -> Iterator[_Batch]:
        """Yield batches of as many pages as the scratch holds."""
        pages, runs = self.starts.shape
        words, run = self.windows.words, self.windows.words.shape[1:]
        page_words = runs * run.numel()
        most = len(self.scratch) // page_words
        in_scratch: list[Tensor] = []
        for first in range(0, pages, most):
            size = min(most, pages - first)
            if not in_scratch or size < most:
                natural = self.scratch[: size * page_words].view(size * runs, *run)
                in_scratch = self._combs_in(natural.view(size, runs, *run))
            in_staging = (comb[first : first + size] for *_, comb in self.combs)
            starts = self.starts[first : first + size].flatten()
            yield _Batch(words, starts, natural, list(zip(in_scratch, in_staging, strict=True)))

    def _combs_in(self, natural: Tensor) -> list[Tensor]:
        """View each comb's share of pages in the pool's order, with the axes it has in staging."""
        rows = natural.permute(0, 1, *(2 + axis for axis in self.windows.axes), 5)
        views = []
        for part, head, comb in self.combs:
            groups, heads, width = comb.shape[3:]
            view = rows[:, :, part, :, head : head + groups * heads]
            views.append(view.view(*view.shape[:3], groups, heads, width))
        return views


def _plan_moves(
    parts: Parts, index: Tensor, staging: Tensor, pieces: Sequence[Piece]
) -> list[_Move]:
    """Check everything, then return the moves: nothing is half done on bad input."""
    _check_arguments(index, staging)
    if not len(index):
        return []
    scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=staging.device)
    staging_word = word_bytes(staging)
    found: dict[tuple[object, ...], Runs] = {}
    moves = []
    for strip, pool, combs in _sources(parts, index, pieces):
        numbers = (n for _, comb in combs for n in (comb.offset, comb.step, comb.row_bytes))
        word = word_bytes(pool, (staging_word, pool.shape[4], *numbers))
        runs = find_runs(pool, index, strip.phase, word, found)
        page_rows = runs.starts.shape[1] * runs.rows
        if not page_rows:
            continue
        page_bytes = page_rows * pool.shape[0] * pool.shape[3] * pool.shape[4]
        if len(scratch) < page_bytes:
            scratch = torch.empty(-(-page_bytes // 8) * 8, dtype=torch.uint8, device=pool.device)
        flat = as_words(staging, word)
        views = [
            (part, comb.head, _view_comb(staging, flat, comb, pool.shape[4], runs))
            for part, comb in combs
        ]
        windows = lay_windows(pool, runs, word)
        moves.append(_Move(windows, runs.starts, views, scratch.view(WORDS[word])))
    return moves


def _sources(parts: Parts, index: Tensor, pieces: Sequence[Piece]) -> list[_Source]:
    """Return what the pieces take from the pool, K and V as one where their rows interleave."""
    sources: list[_Source] = []
    low, high = (int(bound) for bound in index.aminmax())
    for strip in cut_strips(pieces):
        pool = _pool_of(parts, strip)
        if pool.device != index.device:
            raise PoolError(f"index on {index.device}: want it on {pool.device}, as the pool")
        if not 0 <= low <= high < pool.shape[0]:
            raise PoolError(f"index of blocks {low}..{high}: want them in 0..{len(pool) - 1}")
        last = sources[-1] if sources else None
        if last and len(last.pool) == 1 and last.strip[2:5] == strip[2:5]:
            first = last.pool[0]
            step = pool.data_ptr() - first.data_ptr()
            same_memory = pool.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            alike = (pool.shape, pool.stride()) == (first.shape, first.stride())
            if same_memory and alike and 0 < step < first.stride(0):
                both = first.as_strided((2, *first.shape), (step, *first.stride()))
                combs = [*last.combs, *((1, comb) for comb in strip.combs)]
                sources[-1] = _Source(last.strip, both, combs)
                continue
        sources.append(_Source(strip, pool.unsqueeze(0), [(0, comb) for comb in strip.combs]))
    return sources


def _pool_of(parts: Parts, strip: Strip) -> Tensor:
    """Return the heads of the pool tensor that a strip names."""
    layer, part, stop = strip.layer, strip.part, strip.head + strip.heads
    if not (0 <= layer < len(parts) and 0 <= part < len(parts[layer])):
        raise PoolError(f"piece of layer {layer}, part {part}: want one of {len(parts)} layers")
    pool = parts[layer][part]
    if (fewest := min(comb.heads for comb in strip.combs)) < 1:
        raise PoolError(f"piece of {fewest} heads: want 1 or more")
    if not 0 <= strip.head < stop <= pool.shape[2]:
        raise PoolError(f"piece of heads {strip.head}..{stop}: want them in 0..{pool.shape[2]}")
    return pool[:, :, strip.head : stop]


def _view_comb(staging: Tensor, flat: Tensor, comb: Comb, width: int, runs: Runs) -> Tensor:
    """View a comb in ``flat``, staging as words: (pages, runs, rows, groups, heads, width)."""
    pages, run_count = runs.starts.shape
    row, last_row = comb.heads * width, (run_count * runs.rows - 1) * comb.row_bytes
    stop = comb.offset + (comb.groups - 1) * comb.step + last_row + row
    if comb.offset < 0 or stop > staging.shape[1] or (last_row and comb.row_bytes < row):
        raise PoolError(
            f"piece at bytes {comb.offset}..{stop} with rows of {comb.row_bytes} bytes: want it in "
            f"a page's {staging.shape[1]} bytes of staging, rows of {row} bytes or more"
        )
    word = flat.element_size()
    steps = (steps_of(staging)[0], runs.rows * comb.row_bytes, comb.row_bytes, comb.step, width)
    return flat.as_strided(
        (pages, run_count, runs.rows, comb.groups, comb.heads, width // word),
        (*(step // word for step in steps), 1),
        flat.storage_offset() + comb.offset // word,
    )


def _check_arguments(index: Tensor, staging: Tensor) -> None:
    if index.dtype != torch.int64 or index.dim() != 2 or not index.shape[1]:
        raise PoolError(
            f"index of {index.dtype} {tuple(index.shape)}: want int64 (pages, blocks a page)"
        )
    if staging.dtype != torch.uint8 or staging.dim() != 2 or staging.stride(1) != 1:
        raise PoolError(
            f"staging of {staging.dtype} {tuple(staging.shape)}, strides {staging.stride()}: "
            "want uint8 (pages, page bytes), bytes of a page contiguous"
        )
    if len(staging) != len(index):
        raise PoolError(f"staging of {len(staging)} pages: want {len(index)}, as the index")
    if staging.device != index.device:
        raise PoolError(f"index on {index.device}: want it on {staging.device}, as staging")
