"""Arena: host memory that staging slots are cut from; the only memory that backends read into.

It knows no page's content and no backend. One allocation of fixed size; slots come and go.
"""

import os
import weakref
from collections.abc import Callable
from functools import cached_property
from threading import Condition
from typing import TYPE_CHECKING

from unikv.errors import PoolError
from unikv.memory import PAGE, reserve, reserve_private

if TYPE_CHECKING:
    import mmap

    import torch

    from unikv.kernels.staging import Memory, Staging


ALIGN = PAGE
"""Bytes that every slot begins at a multiple of, so that O_DIRECT can read into it."""


class Slot:
    """A run of the arena. It is free again when all who hold it have released it.

    The call that took it holds it, and so does each I/O that reads or writes it: one that outlives
    its call keeps the bytes from everybody else.
    """

    def __init__(self, arena: "Arena", start: int, size: int) -> None:
        self._arena = arena
        self._holds = 1
        self._quarantined = False
        self.start = start
        self.size = size

    def cut(self, at: int, pages: int, page_bytes: int) -> "Staging":
        """Return pages side by side that begin ``at`` bytes into the slot."""
        stop = at + pages * page_bytes
        if min(at, pages, page_bytes) < 0 or stop > self.size or not self._arena.memory:
            raise PoolError(
                f"{pages} pages of {page_bytes} bytes at {at} do not fit a slot of {self.size}, "
                "or the arena is closed"
            )
        from unikv.kernels.staging import Staging

        return Staging(self._arena.words, self.start + at, pages, page_bytes, page_bytes)

    def hold(self) -> None:
        """Keep the bytes until one more `release`."""
        with self._arena.room:
            self._holds += 1

    def release(self) -> None:
        """End one hold; the last one gives the bytes back."""
        with self._arena.room:
            self._holds -= 1
            if not self._holds:
                if self._quarantined:
                    self._arena.quarantined -= self.size
                self._arena.put_back(self.start, self.size)

    def quarantine(self) -> None:
        """Count the bytes as out of use: an I/O that was given up still holds them."""
        with self._arena.room:
            if self._holds and not self._quarantined:
                self._quarantined = True
                self._arena.quarantined += self.size


class Arena:
    """``size`` bytes of host memory, cut into slots of any size that begin at whole 4,096 bytes.

    Args:
        size: bytes, rounded down to whole 4,096.
        shared: whether other processes can map it, by `fd`; then all of it is reserved at once.
        numa_node: node that shared memory is to lie on.

    Raises:
        PoolError: a size below 4,096, or more shared memory than there is.
    """

    def __init__(self, size: int, *, shared: bool = False, numa_node: int | None = None) -> None:
        if size < ALIGN:
            raise PoolError(f"an arena of {size} bytes: want at least {ALIGN}")
        self.size = size // ALIGN * ALIGN
        self.fd = -1
        if shared:
            self.fd, view = reserve(self.size, numa_node=numa_node)
            self._close_fd = weakref.finalize(self, os.close, self.fd)
            self._close_fd.atexit = False  # the kernel's, once nobody uses it any more
        else:
            view = reserve_private(self.size)
        self.memory = memoryview(view)
        self._view: mmap.mmap | None = view
        self.room = Condition()  # guards all below, and is told of every release
        self._gaps = [(0, self.size)]  # start and size, ascending, never adjacent
        self.quarantined = 0  # bytes that only I/Os hold which were given up

    @cached_property
    def tensor(self) -> "torch.Tensor":
        """All of it as uint8."""
        import torch

        assert self._view is not None
        with torch.inference_mode(mode=False):  # for calls in that mode and outside of it
            return torch.frombuffer(self._view, dtype=torch.uint8)

    @cached_property
    def words(self) -> "Memory":
        """All of it, as kernels take it."""
        from unikv.kernels.staging import Memory

        return Memory(self.tensor)

    @property
    def used(self) -> int:
        """Bytes in slots, quarantined ones too."""
        with self.room:
            return self.size - sum(size for _, size in self._gaps)

    def close(self) -> None:
        """Let go of the memory; what an I/O or a slot still uses stays until they are done."""
        if self.fd >= 0:
            self._close_fd()
            self.fd = -1
        if (tensor := self.__dict__.get("tensor")) is not None:
            self.tensor = tensor.new_empty(0)
        self.__dict__.pop("words", None)
        self._view = None
        self.memory = memoryview(b"")

    def pin(self) -> None:
        """Register all of it with CUDA, so that its copy engines read and write it by themselves.

        Raises:
            PoolError: CUDA refused, as where a container may not lock so much memory.
        """
        import torch

        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call] # torch has no type for it
        address = self.tensor.data_ptr()
        code = int(runtime.cudaHostRegister(address, self.size, 0))
        if code:
            raise PoolError(
                f"CUDA cannot register an arena of {self.size} bytes (error {code}): want less "
                "(staging_bytes=), or a larger limit of locked memory"
            )
        # Before the memory itself goes: this holds on to it. Not at exit, amid what is under way.
        last = weakref.finalize(self, _unpin, runtime.cudaHostUnregister, address, self._view)
        last.atexit = False

    def take(self, least: int, most: int) -> Slot | None:
        """Return a slot of at most ``most`` bytes, as large as a gap allows; None below ``least``.

        Sizes are rounded up to whole 4,096 bytes.
        """
        least, most = (-(-size // ALIGN) * ALIGN for size in (least, most))
        with self.room:
            fitting = [gap for gap in self._gaps if gap[1] >= least]
            if not fitting or not most:
                return None
            # The smallest gap that holds all of it, else the largest: large gaps stay whole.
            whole = [gap for gap in fitting if gap[1] >= most]
            gap = min(whole, key=_size) if whole else max(fitting, key=_size)
            start, size = gap[0], min(gap[1], most)
            at = self._gaps.index(gap)
            self._gaps[at : at + 1] = [(start + size, gap[1] - size)] if gap[1] > size else []
        return Slot(self, start, size)

    def wait(self, seconds: float) -> None:
        """Wait until some slot is released, at most so long."""
        with self.room:
            self.room.wait(seconds)

    def put_back(self, start: int, size: int) -> None:
        """Join a run to the gaps around it; `Slot.release` calls this, holding `room`."""
        gaps = sorted([*self._gaps, (start, size)])
        joined = gaps[:1]
        for at, length in gaps[1:]:
            before, much = joined[-1]
            if before + much == at:
                joined[-1] = (before, much + length)
            else:
                joined.append((at, length))
        self._gaps = joined
        self.room.notify_all()


def _unpin(unregister: Callable[[int], object], address: int, view: object) -> None:
    unregister(address)
    del view


def _size(gap: tuple[int, int]) -> int:
    return gap[1]
