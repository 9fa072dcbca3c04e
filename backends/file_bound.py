"""Bound: what a store says to those who keep its root within bounds. It evicts nothing itself."""

import errno
import os
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from unikv.backends.batch import item_bytes
from unikv.backends.file_cells import cell_of
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_evict_table import Table
from unikv.backends.file_folders import Folders
from unikv.backends.file_keeper import Keeper
from unikv.backends.file_limits import Limits
from unikv.backends.file_usage import Usage
from unikv.backends.file_write import Writer
from unikv.errors import KeyFormatError
from unikv.store import Buffer, Outcome

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TOUCH_S = 60.0
"""How old what a file says of its last request may be, at most."""
_TOUCH_SHARE = 20  # ... and at most one part of so many of the age at which objects go
_FIRST_TOUCH_S = 1.0  # ... while nobody knows that age
_LOOK_S = 1.0


class Bound:
    """The bounds of one store's root, for all processes that share the store by a fork.

    Raises:
        StoreError: the root's ledger cannot be made.
    """

    def __init__(self, root: str, limits: Limits) -> None:
        self.root = root
        self._limits = limits
        self._keepers: dict[int, Keeper] = {}  # by process: threads and locks do not fork
        self._touch_s = _FIRST_TOUCH_S
        self._look_at = 0.0
        self._adopt(Keeper(root, limits))

    def keeper(self) -> Keeper:
        """Return this process's keeper."""
        found = self._keepers.get(os.getpid())
        # In a forked process; where the ledger went meanwhile no call fails, and `usage` says so.
        return found or self._adopt(Keeper(self.root, self._limits, strict=False))

    def _adopt(self, keeper: Keeper) -> Keeper:
        """Make a keeper this process's, unless another thread was first; return whose it is."""
        pid = os.getpid()
        found = self._keepers.setdefault(pid, keeper)
        if found is keeper:
            weakref.finalize(self, keeper.end)
        for parent in [other for other in self._keepers if other != pid]:
            if lost := self._keepers.pop(parent, None):
                lost.abandon()
        return found

    def putter(self, writer: Writer) -> "Put":
        """Return what stores objects through a writer, one at a time, and counts them."""
        return Put(self, self.keeper(), writer)

    def deleted(self, folder: str, room: int) -> None:
        """Count an object that was removed from a folder of the root."""
        self.keeper().ledger.add(cell_of(f"/{folder}/".encode(), 0), -room)

    def sizer(self) -> Callable[[int], int]:
        """Return what tells the size of a file that is open, and notes that it was requested."""
        is_due = self._due()

        def size_of(fd: int) -> int:
            found = os.fstat(fd)
            if is_due(found):
                with suppress(OSError):  # not ours, or a file system gone read-only: it is read
                    os.utime(fd)
            return found.st_size

        return size_of

    def refresh(self, folders: Folders, keys: Sequence[str]) -> None:
        """Note that objects were requested: whoever was to store them found them there."""
        is_due = self._due()
        for key in keys:
            with suppress(OSError, KeyFormatError):  # it went meanwhile: then it is no object
                fd = folders.open(key)
                if fd >= 0 and is_due(os.stat(key, dir_fd=fd, follow_symlinks=False)):
                    os.utime(key, dir_fd=fd, follow_symlinks=False)

    def _due(self) -> Callable[[os.stat_result], bool]:
        """Return what tells whether a request of a file is to be noted in its time."""
        now = time.time()
        if not 0 <= now - self._look_at < _LOOK_S:
            self._look_at = now
            with suppress(OSError):
                self._touch_s = _touch_after(self.keeper().ledger.table())
        youngest = now - self._touch_s

        def is_due(found: os.stat_result) -> bool:
            return not youngest < found.st_mtime <= now + _TOUCH_S and stat.S_ISREG(found.st_mode)

        return is_due

    def complete(self, counted: Usage) -> Usage:
        """Add to what was counted what this process knows and did, as far as it can be read."""
        keeper = self.keeper()
        try:
            reading = keeper.ledger.read()
        except OSError as error:
            return counted._replace(fault=keeper.fault or f"{USAGE} cannot be used: {error}")
        return counted._replace(
            estimate=reading.bytes,
            evicted=reading.evicted,
            stuck=reading.stuck,
            fault=keeper.fault,
        )

    def close(self) -> None:
        """End what this process does for the bounds."""
        keeper = self._keepers.pop(os.getpid(), None)
        if keeper is not None:
            keeper.end()


class Put:
    """Stores objects through one writer, within bounds, for one batch."""

    __slots__ = ("_bound", "_keeper", "_root_bytes", "_writer")

    def __init__(self, bound: Bound, keeper: Keeper, writer: Writer) -> None:
        self._bound = bound
        self._keeper = keeper
        self._writer = writer
        self._root_bytes = len(bound.root.encode())

    def __call__(self, key: str, buffers: Sequence[Buffer], *, replace: bool) -> Outcome:
        """Store one object, and count it; see `Writer.put`. A full disk is made room on, once.

        Raises:
            StoreError: it is larger than the bound, or the store is full and nothing can go.
        """
        writer, size = self._writer, item_bytes(buffers)
        self._keeper.admit(size)
        try:
            code = writer.put(key, buffers, replace=replace)
        except OSError as error:
            if error.errno not in _FULL or not self._keeper.make_room(size):
                raise
            code = self._put_again(key, buffers, replace=replace)
        if code is Outcome.OK:
            self._keeper.stored(cell_of(writer.path, self._root_bytes), writer.grown)
        else:
            with closing(Folders(self._bound.root)) as folders:
                self._bound.refresh(folders, [key])
        return code

    def _put_again(self, key: str, buffers: Sequence[Buffer], *, replace: bool) -> Outcome:
        try:
            code = self._writer.put(key, buffers, replace=replace)
        except OSError as error:
            self._keeper.note_room(full=error.errno in _FULL)
            raise
        self._keeper.note_room(full=False)
        return code


def _touch_after(table: Table) -> float:
    """Return after how many seconds a request of the same object is noted anew."""
    return min(table.horizon / _TOUCH_SHARE, _TOUCH_S) if table.horizon else _FIRST_TOUCH_S
