"""Direct I/O: moves bytes between disk and buffers past the page cache (O_DIRECT). It knows no key.

The kernel wants file offset, address and length as multiples of the disk's sector. Sectors that lie
wholly in a buffer, at an address of the same remainder as their offset, move straight; the others
go through a thread's own bounce buffer, in the same call. The last bytes of a file, less than a
block, are written through the page cache: the bytes on disk are those of any other writer.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from unikv.backends.file_size import BLOCK
from unikv.backends.linux import READ, How, try_open
from unikv.backends.vector import IOV_MAX, read_into
from unikv.errors import StoreError
from unikv.store import Buffer

_SECTORS = (512, BLOCK)  # what disks ask for; the smallest is tried first
_BOUNCE = 1 << 20  # bytes a thread
_READ_DIRECT = How(READ.flags | os.O_DIRECT)
_NO_OPEN = "its file system opens no file with O_DIRECT"
_T = TypeVar("_T")


class Direct:
    """How far direct I/O works beneath one root. Learns from the kernel's refusals."""

    def __init__(self) -> None:
        self.note: str | None = None
        """Why bytes go through the page cache after all; None while they do not."""
        self.sector = _SECTORS[0]  # 0: no direct I/O here
        self._bounces = threading.local()

    def open_new(self, path: bytes, flags: int) -> int:
        """Make a file and open it, for direct I/O if that works here; return its descriptor."""
        if self.sector:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            with suppress(FileNotFoundError):  # some file systems make it, and then refuse
                Path(os.fsdecode(path)).unlink()
            self._refuse(_NO_OPEN)
        return os.open(path, flags, 0o600)

    def open(self, path: bytes, at: int) -> int:
        """Open a file for reading, as `try_open` does, for direct I/O if that works here."""
        if self.sector:
            fd = try_open(path, _READ_DIRECT, at)
            if fd != -errno.EINVAL:
                return fd
        fd = try_open(path, READ, at)
        if self.sector and fd >= 0 and stat.S_ISREG(os.fstat(fd).st_mode):
            self._refuse(_NO_OPEN)  # and not because it is a folder
        return fd

    def read(self, fd: int, views: Sequence[memoryview], size: int, start: int) -> int:
        """Fill views of ``size`` bytes together from ``start`` on; return how many there were."""

        def move(sector: int) -> int:
            if not sector:
                _buffer(fd)
                return read_into(fd, views, size, start)
            done = 0
            for view in views:
                count = view.nbytes
                if count and self._read_one(fd, view.cast("B"), start + done, sector) < count:
                    # At the end, or a call that stopped early: the plain way tells which.
                    _buffer(fd)
                    return read_into(fd, views, size, start)
                done += count
            return done

        return self._learn(move)

    def write(self, fd: int, buffers: Sequence[Buffer], size: int) -> None:
        """Write buffers of ``size`` bytes together to the start of a file, or raise `OSError`."""

        def move(sector: int) -> None:
            body = size // BLOCK * BLOCK if sector else 0
            if body:
                self._write_body(fd, buffers, body, sector)
            _buffer(fd)
            _write(fd, _behind(buffers, body), body)

        self._learn(move)

    def _learn(self, move: Callable[[int], _T]) -> _T:
        """Move bytes by the sector that works here, and by none if none does."""
        while True:
            sector = self.sector
            try:
                return move(sector)
            except OSError as error:
                if error.errno != errno.EINVAL or not sector:
                    raise
            larger = [other for other in _SECTORS if other > sector]
            if larger:
                self.sector = larger[0]
            else:
                self._refuse("its file system takes no sectors of 512 or 4096 bytes")

    def _refuse(self, why: str) -> None:
        self.sector = 0
        self.note = f"through the page cache: {why}"

    def _read_one(self, fd: int, view: memoryview, start: int, sector: int) -> int:
        """Fill a view; return how many bytes of it there were, at least."""
        stop = start + view.nbytes
        low, high = start - start % sector, stop + -stop % sector
        bounce = self._bounce()
        if (_address_of(view) - start) % sector == 0 and high - low > 2 * sector:
            first, last = start + -start % sector, stop - stop % sector
            head, tail = bounce[: first - start and sector], bounce[sector : sector + high - last]
            parts = [part for part in (head, view[first - start : last - start], tail) if part]
            done = os.preadv(fd, parts, low)
            view[: first - start] = head[start - low :]
            view[last - start :] = tail[: stop - last]
            return min(done, stop - low) - (start - low)
        done = 0
        for at in range(low, high, _BOUNCE):
            wanted = min(at + _BOUNCE, high) - at
            count = os.preadv(fd, [bounce[:wanted]], at)
            begin, end = max(start, at), min(stop, at + count)
            if begin < end:
                view[begin - start : end - start] = bounce[begin - at : end - at]
                done += end - begin
            if count < wanted:
                break
        return done

    def _write_body(self, fd: int, buffers: Sequence[Buffer], body: int, sector: int) -> None:
        """Write the first ``body`` bytes, whole blocks of them."""
        bounce = self._bounce()
        parts: list[memoryview] = []  # whole sectors each, that follow each other in the file
        at = wrote = 0  # bytes gathered so far, and of them written
        begun = filled = 0  # where the last part in the bounce buffer begins and ends
        for buffer in _behind(buffers, 0):
            view = buffer[: body - at]
            while view:
                head = -at % sector  # bytes that the last sector lacks
                straight = 0
                if (_address_of(view) - at) % sector == 0:
                    straight = max(view.nbytes - head, 0) // sector * sector
                if straight and not head:
                    if filled > begun:
                        parts.append(bounce[begun:filled])
                        begun = filled
                    count = straight
                    parts.append(view[:count])
                else:
                    count = min(head if straight else view.nbytes, _BOUNCE - filled)
                    bounce[filled : filled + count] = view[:count]
                    filled += count
                at, view = at + count, view[count:]
                if filled == _BOUNCE or (begun == filled and len(parts) > IOV_MAX - 2):
                    _write(fd, [*parts, bounce[begun:filled]], wrote)
                    parts, wrote, begun, filled = [], at, 0, 0
        _write(fd, [*parts, bounce[begun:filled]], wrote)

    def _bounce(self) -> memoryview:
        """Return this thread's aligned buffer."""
        found: tuple[int, memoryview] | None = getattr(self._bounces, "held", None)
        # Shared memory: a fork while a transfer runs must not copy its pages; so the child has to
        # have a buffer of its own.
        if found is None or found[0] != os.getpid():
            found = os.getpid(), memoryview(mmap.mmap(-1, _BOUNCE))
            self._bounces.held = found
        return found[1]


def _address_of(view: memoryview) -> int:
    """Return where a view lies in memory; 1, which is no sector's, where Python does not tell."""
    if view.readonly:
        return 1
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _buffer(fd: int) -> None:
    """Let a file that is open go through the page cache from now on."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)


def _behind(buffers: Sequence[Buffer], done: int) -> list[memoryview]:
    """Return what lies behind the first ``done`` bytes of some buffers."""
    rest: list[memoryview] = []
    for buffer in buffers:
        view = memoryview(buffer)
        if done < view.nbytes:  # an empty view cannot be cast
            rest.append(view.cast("B")[done:])
        done = max(done - view.nbytes, 0)
    return rest


def _write(fd: int, views: Sequence[memoryview], start: int) -> None:
    """Write views one after the other from ``start`` on, in as many calls as it takes."""
    rest = _behind(views, 0)
    while rest:
        wrote = os.pwritev(fd, rest[:IOV_MAX], start)
        if wrote == 0:
            raise StoreError(f"wrote {start} bytes, then no more")
        start += wrote
        rest = _behind(rest, wrote)
