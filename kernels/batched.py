"""Batched: many copies in one call, without the interpreter's lock between them. It knows no page.

Beside a busy Python thread every torch operation that lets go of the lock waits 5 ms to have it
back, and a transfer is hundreds of them. A TorchScript function is one operation, whatever it does
inside. Where torch has no TorchScript, the same loops run in Python.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias, cast

import torch
from torch import Tensor

_Tensors: TypeAlias = list[Tensor]
_Counts: TypeAlias = list[int]
Batches: TypeAlias = tuple[_Tensors, _Tensors, _Tensors, _Tensors, _Tensors, _Counts]
"""Windows, starts and runs, one each a batch; then copies in scratch and in staging, and how many
of them belong to each batch."""

_SOURCE = """
def gather(windows: List[Tensor], starts: List[Tensor], runs: List[Tensor],
           scratch: List[Tensor], staging: List[Tensor], counts: List[int]):
    at = 0
    for i in range(len(windows)):
        torch.index_select(windows[i], 0, starts[i], out=runs[i])
        for _ in range(counts[i]):
            staging[at].copy_(scratch[at])
            at += 1

def scatter(windows: List[Tensor], starts: List[Tensor], runs: List[Tensor],
            scratch: List[Tensor], staging: List[Tensor], counts: List[int]):
    at = 0
    for i in range(len(windows)):
        for _ in range(counts[i]):
            scratch[at].copy_(staging[at])
            at += 1
        windows[i].index_copy_(0, starts[i], runs[i])
"""
_Move: TypeAlias = Callable[[_Tensors, _Tensors, _Tensors, _Tensors, _Tensors, _Counts], object]


def gather(batches: Batches) -> None:
    """For each batch copy the windows at its starts to its runs, then scratch to staging."""
    _compiled("gather", _gather)(*batches)


def scatter(batches: Batches) -> None:
    """For each batch copy staging to scratch, then its runs to the windows at its starts."""
    _compiled("scatter", _scatter)(*batches)


@cache
def _compiled(name: str, plain: _Move) -> _Move:
    try:
        # Not torch.jit.script: it warns that it is deprecated, and what it names instead compiles
        # with a C++ compiler, for minutes.
        unit = torch.jit.CompilationUnit(_SOURCE)
    except (AttributeError, RuntimeError):  # a torch or Python without TorchScript
        return plain
    return cast("_Move", getattr(unit, name))


def _gather(
    windows: Sequence[Tensor],
    starts: Sequence[Tensor],
    runs: Sequence[Tensor],
    scratch: Sequence[Tensor],
    staging: Sequence[Tensor],
    counts: Sequence[int],
) -> None:
    at = 0
    for window, start, run, count in zip(windows, starts, runs, counts, strict=True):
        torch.index_select(window, 0, start, out=run)
        for n in range(at, at + count):
            staging[n].copy_(scratch[n])
        at += count


def _scatter(
    windows: Sequence[Tensor],
    starts: Sequence[Tensor],
    runs: Sequence[Tensor],
    scratch: Sequence[Tensor],
    staging: Sequence[Tensor],
    counts: Sequence[int],
) -> None:
    at = 0
    for window, start, run, count in zip(windows, starts, runs, counts, strict=True):
        for n in range(at, at + count):
            scratch[n].copy_(staging[n])
        at += count
        window.index_copy_(0, start, run)
