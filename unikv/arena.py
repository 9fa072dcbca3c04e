"""Arena: host memory that staging is cut from; the only memory that backends read into.

It knows no page and no backend. One allocation, made at first use and never grown.
"""

import torch

from unikv.errors import PoolError

ALIGN = 4096
"""Bytes that an arena begins at a multiple of, so that O_DIRECT can read into it."""


class Arena:
    """``size`` bytes of host memory, page-aligned; physical memory follows first touch."""

    def __init__(self, size: int) -> None:
        if size < ALIGN:
            raise PoolError(f"an arena of {size} bytes: want at least {ALIGN}")
        self.size = size
        self._bytes: torch.Tensor | None = None

    def cut(self, start: int, pages: int, page_bytes: int) -> torch.Tensor:
        """Return uint8 ``(pages, page_bytes)`` that begins ``start`` bytes into the arena."""
        if start + pages * page_bytes > self.size:
            raise PoolError(
                f"{pages} pages of {page_bytes} bytes at {start} do not fit an arena of {self.size}"
            )
        if self._bytes is None:
            whole = torch.empty(self.size + ALIGN, dtype=torch.uint8)
            skip = -whole.data_ptr() % ALIGN
            self._bytes = whole[skip : skip + self.size]
        return self._bytes[start : start + pages * page_bytes].view(pages, page_bytes)
