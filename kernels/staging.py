"""Staging: pages side by side in one stretch of memory, as numbers. It knows no pool, no format.

A view of a tensor is a torch call, and each of those lets go of the interpreter's lock; beside a
busy Python thread it takes 5 ms to have it back. So staging is cut and shortened as numbers, and
`unikv.kernels.moving` makes the views.
"""

from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor


class Memory:
    """A tensor's memory, and the first word of it by dtype; `as_strided` reaches all others."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.start = int(tensor.storage_offset()) * tensor.element_size()
        self.address = tensor.untyped_storage().data_ptr()
        self._words: dict[torch.dtype, Tensor] = {}

    def words(self, dtype: torch.dtype) -> Tensor:
        """Return the first word of the tensor's storage, which begins at `address`."""
        if dtype not in self._words:
            with torch.inference_mode(mode=False):  # for calls in that mode and outside of it
                first = self.tensor.as_strided((dtype.itemsize,), (1,), 0)
                self._words[dtype] = first.view(dtype)
        return self._words[dtype]


@dataclass(frozen=True, slots=True, eq=False)
class Staging:
    """Pages of ``page_bytes`` in ``memory``, from byte ``at`` of it, ``step`` bytes apart."""

    memory: Memory  # uint8
    at: int
    pages: int
    page_bytes: int
    step: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Staging":
        """Return uint8 (pages, page bytes), bytes of a page contiguous, as staging."""
        pages, page_bytes = tensor.shape
        return cls(Memory(tensor), 0, pages, page_bytes, tensor.stride(0) if pages > 1 else 0)

    def rows(self, start: int, stop: int) -> "Staging":
        """Return some adjacent pages."""
        return replace(self, at=self.at + start * self.step, pages=stop - start)

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.memory.tensor.device

    @property
    def place(self) -> int:
        """Bytes from the storage's first to its own first."""
        return self.memory.start + self.at

    @property
    def word(self) -> int:
        """The most bytes, up to 8, that its address and its step are a multiple of."""
        return gcd(8, self.memory.address + self.place, self.place, self.step)

    @property
    def tensor(self) -> Tensor:
        """It as uint8 (pages, page_bytes)."""
        return self.memory.tensor.as_strided(
            (self.pages, self.page_bytes), (self.step or self.page_bytes, 1), self.place
        )
