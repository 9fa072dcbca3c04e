"""Moving: all copies of one pack or unpack as one TorchScript call. It knows no page's meaning.

Beside a busy Python thread every torch operation that lets go of the interpreter's lock waits 5 ms
to have it back, and a transfer is hundreds of them: views, gathers, copies. A TorchScript function
is one operation, whatever it does inside. So the functions here keep to what TorchScript and Python
both read, and take geometry as numbers. Where torch has no TorchScript they run as they are.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import TypeAlias, cast

import torch
from torch import Tensor

_Rows: TypeAlias = list[list[int]]
Move: TypeAlias = Callable[
    [bool, list[Tensor], list[Tensor], list[int], _Rows, _Rows, _Rows, Tensor, list[int]],
    tuple[int, int, list[Tensor]],
]


@cache
def compiled() -> Move:
    """Return `move` as one operation, where torch can."""
    used = (common_step, find_runs, by_stride, is_straight, straight, through)
    try:
        # Not torch.jit.script: it warns that it is deprecated, and what it names instead compiles
        # with a C++ compiler, for minutes.
        unit = torch.jit.CompilationUnit(
            "\n".join([inspect.getsource(function) for function in (*used, move)])
        )
    except (AttributeError, OSError, RuntimeError):  # no TorchScript, or no source to read
        return move
    return cast("Move", unit.move)


def common_step(a: int, b: int) -> int:
    """Return the greatest number that divides both: `math.gcd`, which TorchScript has not."""
    while b != 0:
        a, b = b, a % b
    return a


def find_runs(index: Tensor, grid: list[int]) -> tuple[Tensor, int, int]:
    """Find the longest runs that the rows of every page fall into.

    A row has an address: how many words it lies behind the pool's first one. Rows of a page whose
    addresses grow by one step form a run. Addresses are int64: a pool passes 2**31 easily.

    Args:
        index: int64 (pages, blocks a page).
        grid: words from block to block and from token to token, tokens a block; then index, count
            and interleave of the phase that is wanted.

    Returns:
        int64 (pages, runs a page), the address of each run's first row; the rows of a run; the
        words from one row of a run to the next, 0 for a run of one row.
    """
    block, token, tokens, phase, phases, interleave = grid
    in_block = torch.arange(tokens, device=index.device) * token
    rows = ((index * block).unsqueeze(2) + in_block).flatten(1)
    if phases > 1:
        order = torch.arange(rows.shape[1], device=index.device)
        rows = rows[:, torch.remainder(torch.floor_divide(order, interleave), phases) == phase]
    length, step = 1, 0
    if rows.shape[1] > 1:
        steps = torch.diff(rows, dim=1)
        step = int(steps[0, 0])
        if step > 0:
            length = rows.shape[1]
            breaks: list[int] = (steps != step).any(0).nonzero().flatten().tolist()
            for at in breaks:
                length = common_step(length, at + 1)
    if length == 1:
        step = 0
    return rows[:, ::length], length, step


def by_stride(strides: list[int]) -> list[int]:
    """Return the places of three strides, the longest first; of equal ones the first is first."""
    order = [0, 1, 2]
    for last in (2, 1):
        for i in range(last):
            if strides[order[i]] < strides[order[i + 1]]:
                order[i], order[i + 1] = order[i + 1], order[i]
    return order


def is_straight(
    pages: int, laid: list[int], combs: list[list[int]], word: int, least: list[int]
) -> bool:
    """Whether pool and staging keep the same order of rows, and rows and batches are long."""
    _, _, parts, _, rows, step, heads, head, width = laid
    if parts > 1 or len(combs) > 1 or (heads > 1 and step < head):
        return False
    row_bytes = combs[0][2] * width * word
    return row_bytes >= least[0] and pages * rows * heads * width * word >= least[1]


def straight(
    packing: bool,  # noqa: FBT001 - TorchScript passes by position
    pool: Tensor,
    staging: Tensor,
    begins: Tensor,
    laid: list[int],
    comb: list[int],
    strides: list[int],
) -> None:
    """Move rows straight between pool and staging: a batch for each run of a page.

    Args:
        packing: from pool to staging.
        pool: its memory, as words; only its storage counts, not its shape.
        staging: the same of staging.
        begins: int64 (pages, runs a page), words from ``laid[0]``.
        laid: the source: its place; how many windows it has; parts and their step; rows of
            a run and their step; heads and their step; width.
        comb: as `move` takes it.
        strides: in staging: its place, then from page to page, row to row, and from one
            piece of the comb to the next.
    """
    at, count, _, _, rows, step, _, head, width = laid
    members, groups = comb[2], comb[3]
    place, page_step, row_step, group_step = strides
    windows = pool.as_strided(
        [count, rows, groups, members, width], [1, step, members * head, head, 1], at
    )
    for run in range(begins.shape[1]):
        batch = staging.as_strided(
            [begins.shape[0], rows, groups, members, width],
            [page_step, row_step, group_step, width, 1],
            place + run * rows * row_step,
        )
        if packing:
            torch.index_select(windows, 0, begins[:, run], out=batch)
        else:
            windows.index_copy_(0, begins[:, run], batch)


def through(
    packing: bool,  # noqa: FBT001
    pool: Tensor,
    staging: Tensor,
    scratch: Tensor,
    begins: Tensor,
    laid: list[int],
    combs: list[list[int]],
    strides: list[list[int]],
) -> None:
    """Move pages through a scratch in the pool's own order, as many at once as it holds.

    Takes what `straight` does, for all combs of a source, and words of scratch.
    """
    at, count, parts, part, rows, step, heads, head, width = laid
    pages, runs = begins.shape
    sizes, steps = [parts, rows, heads], [part, step, head]
    a, b, c = by_stride(steps)  # so that a gather reads and a scatter writes memory in order
    windows = pool.as_strided(
        [count, sizes[a], sizes[b], sizes[c], width], [1, steps[a], steps[b], steps[c], 1], at
    )
    run_words = parts * rows * heads * width
    inner = [0, 0, 0]
    inner[a], inner[b], inner[c] = sizes[b] * sizes[c] * width, sizes[c] * width, width
    most = len(scratch) // (runs * run_words)
    for page in range(0, pages, most):
        some = min(most, pages - page)
        batch = scratch.as_strided(
            [some * runs, sizes[a], sizes[b], sizes[c], width],
            [run_words, inner[a], inner[b], inner[c], 1],
        )
        begin = begins[page : page + some].flatten()
        if packing:
            torch.index_select(windows, 0, begin, out=batch)
        for i in range(len(combs)):
            of_part, of_head, members, groups = combs[i][:4]
            place, page_step, row_step, group_step = strides[i]
            shape = [some, runs, rows, groups, members, width]
            in_scratch = scratch.as_strided(
                shape,
                [runs * run_words, run_words, inner[1], members * inner[2], inner[2], 1],
                of_part * inner[0] + of_head * inner[2],
            )
            in_staging = staging.as_strided(
                shape,
                [page_step, rows * row_step, row_step, group_step, width, 1],
                place + page * page_step,
            )
            if packing:
                in_staging.copy_(in_scratch)
            else:
                in_scratch.copy_(in_staging)
        if not packing:
            windows.index_copy_(0, begin, batch)


def move(
    packing: bool,  # noqa: FBT001
    pools: list[Tensor],
    stagings: list[Tensor],
    staged: list[int],
    grids: list[list[int]],
    sources: list[list[int]],
    combs: list[list[int]],
    index: Tensor,
    limits: list[int],
) -> tuple[int, int, list[Tensor]]:
    """Copy pages from pool to staging, or from staging to pool.

    A window has the shape of a run and may begin at any word of the pool, so that runs are picked
    by address along one axis, whatever the layout. One gather (or scatter) of windows moves a
    source: straight between pool and staging where both keep the order of rows and runs are long,
    else through a scratch, with copies that have one side in cache.

    Places, steps and widths are in words where nothing else is said.

    Args:
        packing: from pool to staging.
        pools: of each source the memory, as words; only its storage counts, not its shape.
        stagings: the same of staging, by the kinds of word that ``sources`` count.
        staged: where in it staging begins and the step from page to page, in bytes.
        grids: as `find_runs` takes them; what ``sources`` count.
        sources: of each the kind of its words and its grid, then place in the storage, parts and
            their step, address of the last row, heads and their step, width; then which of
            ``combs`` are its own: the first and the one behind the last.
        combs: part, first head (of the source), heads a piece, pieces; the offset in a page, steps
            from piece to piece and from row to row.
        index: int64 (pages, blocks a page), one page or more.
        limits: blocks of the pools; the bytes of scratch; the fewest bytes of a row and of a batch
            that are moved straight.

    Returns:
        The least and the greatest block of the index. Where one is not in the pools nothing moved.
        And the tensors given: torch takes the interpreter's lock to let go of one that Python
        knows, so that happens where the lock is held anyway.
    """
    given = [index] + pools + stagings  # noqa: RUF005 - TorchScript spreads no list
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= limits[0]:
        return low, high, given
    begins: list[Tensor] = []
    runs: list[list[int]] = []
    for grid in grids:
        starts, rows, step = find_runs(index, grid)
        begins.append(starts)
        runs.append([starts.shape[1], rows, step])
    scratch = pools[0]
    room = 0
    for i in range(len(sources)):
        kind, grid_at, at, parts, part, last, heads, head, width, first, end = sources[i]
        count, rows, step = runs[grid_at]
        if count == 0:
            continue
        pool, staging, own = pools[i], stagings[kind], combs[first:end]
        laid = [at, last - (rows - 1) * step + 1, parts, part, rows, step, heads, head, width]
        begin, page_step = staged[0] // pool.element_size(), staged[1] // pool.element_size()
        strides = [[begin + comb[4], page_step, comb[6], comb[5]] for comb in own]
        if is_straight(len(index), laid, own, pool.element_size(), limits[2:]):
            straight(packing, pool, staging, begins[grid_at], laid, own[0], strides[0])
            continue
        least = max(limits[1] // pool.element_size(), count * parts * rows * heads * width)
        if room < least or scratch.dtype != pool.dtype:
            scratch, room = pool.new_empty([least]), least
        through(packing, pool, staging, scratch, begins[grid_at], laid, own, strides)
    return low, high, given
