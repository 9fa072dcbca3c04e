"""Record: the bytes that one process added to a root and took from it, for all others to read.

A file ``.usage/<16 hex>``, locked (flock) while its process lives:

    0     8        magic
    8     8        zeros
    16    16·260   rows: i64 value, u32 CRC-32, zeros

Row 0 is bytes added less bytes taken, in all cells; row 1 counts evicted objects, row 2 files that
could not be removed; row 3 + n is bytes in cell n. The CRC covers name, row and value. Nobody but
its process writes it, and that waits for no lock.
"""

import fcntl
import os
import re
import secrets
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from zlib import crc32

from unikv.backends.file_cells import CELLS
from unikv.backends.file_evict_place import write_all

MAGIC = b"unikvRC1"
TOTAL, EVICTED, STUCK, FIRST_CELL = range(4)
ROWS = FIRST_CELL + CELLS

_ROWS_AT = 16

_ROW = Struct("<qI4x")
_VALUE = Struct("<q")
_LIMIT = 2**62
_NAME = re.compile(r"[0-9a-f]{16}\Z")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class Record:
    """This process's own record; its threads share it.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: int) -> None:
        self.name = secrets.token_hex(8)
        self._values = [0] * ROWS
        self._seeds = [_seed(self.name, row) for row in range(ROWS)]
        self._lock = threading.Lock()
        # It gets its name once it is locked, so that nobody takes it for a dead process's.
        new = f"{self.name}.new"
        self._fd = os.open(new, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            rows = b"".join(_pack(0, seed) for seed in self._seeds)
            write_all(self._fd, MAGIC.ljust(_ROWS_AT, b"\0") + rows)
            os.rename(new, self.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.close(self._fd)
            with suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise

    def add(self, cell: int, delta: int) -> None:
        """Count bytes that went into a cell, or with a minus out of it.

        Raises:
            OSError: it cannot be written, or was closed.
        """
        with self._lock:
            self._add(FIRST_CELL + cell, delta)
            self._add(TOTAL, delta)

    def count(self, row: int, times: int) -> None:
        """Count something else, of which there were so many more.

        Raises:
            OSError: as `add` does.
        """
        with self._lock:
            self._add(row, times)

    def is_in(self, folder: int) -> bool:
        """Return whether others find it in a folder: somebody may have cleared that."""
        try:
            there = os.stat(self.name, dir_fd=folder, follow_symlinks=False)
            return os.path.samestat(there, os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the lock: what stands here is now to be taken over."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def abandon(self) -> None:
        """Close it in a forked child: the lock stays the parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _add(self, row: int, delta: int) -> None:
        value = self._values[row] = self._values[row] + delta
        os.pwrite(self._fd, _pack(value, self._seeds[row]), _ROWS_AT + 16 * row)


def is_record(name: str) -> bool:
    """Return whether a name in the folder is a record's."""
    return _NAME.match(name) is not None


def read_rows(folder: int, name: str, rows: Sequence[int]) -> Sequence[int | None]:
    """Return the values of some rows.

    None stands for a row that is damaged, and for every row of a file that is no record.

    Raises:
        OSError: there is no such record, or it cannot be read.
    """
    first = min(rows)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        data = os.pread(fd, 16 * (max(rows) + 1 - first), _ROWS_AT + 16 * first)
    finally:
        os.close(fd)
    return [_parse(data[16 * (row - first) :][:16], name, row) for row in rows]


def lock_of_dead(folder: int, name: str) -> int | None:
    """Return a descriptor that holds the lock of a dead process's record.

    None if it lives, is another user's, or is no file at all.
    """
    try:
        fd = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _parse(data: bytes, name: str, row: int) -> int | None:
    if len(data) < 16:
        return None
    value, check = _ROW.unpack(data)
    good = abs(value) < _LIMIT and check == crc32(data[:8], _seed(name, row))
    return int(value) if good else None


def _pack(value: int, seed: int) -> bytes:
    return _ROW.pack(value, crc32(_VALUE.pack(value), seed))


def _seed(name: str, row: int) -> int:
    return crc32(f"{name}/{row}".encode())
