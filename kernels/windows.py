"""Window: where the rows of pages lie in a pool tensor, as words. It knows no staging.

A row has an address: how many words it lies behind the tensor's first byte. Rows of a page whose
addresses grow by one step form a run. A window has the shape of a run and may begin at any word,
so that runs are picked by address along one axis, whatever the layout: slots or blocks, tokens or
heads first, whole pages or phases. Windows overlap; the runs among them do not. All addresses are
int64: a pool passes 2**31 words easily.
"""

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from unikv.geometry import Phase

WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""The dtype that bytes are moved as, by its size; never the cache's own."""


class Runs(NamedTuple):
    """The runs of every page."""

    starts: Tensor  # int64 (pages, runs a page), the address of each run's first row
    rows: int  # of each run
    step: int  # words from one row of a run to the next


class Windows(NamedTuple):
    """Every window of a pool, and where the axes of a run are in it."""

    words: Tensor  # (any word, *axes in the pool's order, width)
    axes: tuple[int, int, int]  # of part, row and head, counted from the axis behind "any word"


def word_bytes(tensor: Tensor, numbers: Iterable[int] = ()) -> int:
    """Return the widest word that fits a tensor's strides, its beginning and all ``numbers``."""
    steps = steps_of(tensor)[:-1]
    return gcd(8, tensor.data_ptr(), tensor.storage_offset(), *steps, *numbers)


def steps_of(tensor: Tensor) -> list[int]:
    """Return a tensor's strides, 0 for an axis of one: nothing steps along it."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if size > 1 else 0 for size, stride in axes]


def as_words(tensor: Tensor, word: int) -> Tensor:
    """View the bytes from a tensor's first to its last as words, along one axis."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, steps_of(tensor), strict=True))
    return tensor.as_strided(((last + 1) // word * word,), (1,)).view(WORDS[word])


def find_runs(
    pool: Tensor, index: Tensor, phase: Phase, word: int, found: dict[tuple[object, ...], Runs]
) -> Runs:
    """Find the longest runs that the rows of every page fall into.

    Args:
        pool: uint8 (parts, blocks, block_tokens, heads, width).
        index: int64 (pages, blocks a page).
        phase: the rows of a page that are wanted.
        word: bytes a word.
        found: answers so far; tensors of equal strides share them.
    """
    block, token = (step // word for step in steps_of(pool)[1:3])
    key = (block, token, pool.shape[2], phase)
    if key not in found:
        tokens = torch.arange(pool.shape[2], device=index.device) * token
        addresses = ((index * block).unsqueeze(2) + tokens).flatten(1)
        if phase.count > 1:
            kept = torch.tensor(phase.tokens(addresses.shape[1]), dtype=torch.int64)
            addresses = addresses[:, kept.to(index.device)]
        rows, step = _run_length(addresses)
        found[key] = Runs(addresses[:, ::rows].contiguous(), rows, step)
    return found[key]


def _run_length(addresses: Tensor) -> tuple[int, int]:
    """Return the rows of a run and their step; a run of one row has no step."""
    page_rows = addresses.shape[1]
    if page_rows < 2:
        return 1, 0
    steps = addresses.diff(dim=1)
    step = int(steps[0, 0])
    if step <= 0:
        return 1, 0
    breaks = (steps != step).any(0).nonzero().flatten() + 1
    rows = gcd(page_rows, *breaks.tolist())
    return (rows, step) if rows > 1 else (1, 0)


def lay_windows(pool: Tensor, runs: Runs, word: int) -> Windows:
    """Lay a window at every word where one fits between the pool's first and last row.

    Its axes are those of a run, the longest stride first, so that a gather reads and a scatter
    writes memory in order.
    """
    part, block, token, head, _ = (step // word for step in steps_of(pool))
    parts, blocks, tokens, heads, width = pool.shape
    last_row = (blocks - 1) * block + (tokens - 1) * token
    count = last_row - (runs.rows - 1) * runs.step + 1
    axes = [(part, parts, 0), (runs.step, runs.rows, 1), (head, heads, 2)]
    axes.sort(key=lambda axis: -axis[0])
    steps, sizes, names = zip(*axes, strict=True)
    words = as_words(pool, word).as_strided((count, *sizes, width // word), (1, *steps, 1))
    return Windows(words, (names.index(0), names.index(1), names.index(2)))
