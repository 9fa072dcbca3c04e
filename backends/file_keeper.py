"""Keeper: what one process does for the bounds of a root: it counts, calls who evicts, and helps.

It knows no object. Eviction is the work of a process of its own; a writer looks at usage now and
then, and evicts itself only where usage has run past the bound, or the disk is full.
"""

import os
import threading
import time
from contextlib import suppress

from unikv.backends.file_evict import Evictor, Removed
from unikv.backends.file_evict_child import Child
from unikv.backends.file_evict_claim import strictest
from unikv.backends.file_evict_ledger import Ledger, Reading
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_evict_reckon import Reckoning
from unikv.backends.file_evict_table import Table
from unikv.backends.file_limits import Limits
from unikv.backends.file_size import room_of
from unikv.backends.file_temp import sweep
from unikv.errors import StoreError

_SAMPLE = 256  # pages: a writer waits for it
_RESTS_S = (1.0, 60.0)  # after help that freed nothing; doubled up to


class Keeper:
    """Keeps a root within limits, for one process; its threads share it.

    Args:
        root: the folder.
        limits: its bounds.
        strict: whether to raise where the root's ledger cannot be made; else the bounds are kept
            without it.

    Raises:
        StoreError: the root's ledger cannot be made.
    """

    def __init__(self, root: str, limits: Limits, *, strict: bool = True) -> None:
        self.ledger = Ledger(root, strict=strict)
        self.child = Child(root, limits)
        self._root = root
        self._limits = limits
        self._begun = self._ended = False
        self._fault: str | None = None  # of the ledger
        self._knew = False  # whether the ledger once was one to believe
        self._adrift = False  # whether since then it was not to be had, or lost
        self._reckoning = Reckoning(root)
        self._over = False  # writers are to help
        self._share = 0  # bytes that this process may store until it looks at usage
        self._since = 0  # bytes that it began to store since it did
        self._full_s, self._full_until = _RESTS_S[0], 0.0
        self._helpless_until = 0.0
        self._evictor = Evictor(root, self.ledger, sample=_SAMPLE)
        self._lock = threading.Lock()  # of all that is not counting
        self._pid = os.getpid()

    @property
    def fault(self) -> str | None:
        """Why nobody evicts, or writers alone do, where a process should."""
        return self._fault or self.child.fault

    def admit(self, size: int) -> None:
        """Let a writer store an object, after it helped where eviction lags behind.

        Raises:
            StoreError: it can never be stored, or nothing can be evicted for it.
        """
        limit, room = self._limits.max_bytes, room_of(size)
        if limit is not None and room > limit:
            raise StoreError(f"the object has {size} bytes, and max_bytes is {limit}")
        # Counted before it is stored: who looked afterwards would have passed the bound by then.
        self._since += room
        if self._since >= self._share and self._lock.acquire(blocking=False):
            try:
                self._look(room)
            finally:
                self._lock.release()
        if self._over:
            self._help(room)

    def stored(self, cell: int, grown: int) -> None:
        """Count what a writer stored: bytes more than there were before."""
        if grown:
            self.ledger.add(cell, grown)
            self._reckoning.add(grown)

    def make_room(self, size: int) -> bool:
        """Evict for an object that the disk had no room for; return whether to try once more."""
        with self._lock:
            if time.monotonic() < self._full_until:
                return False
            swept = 0
            with suppress(OSError):
                swept = sweep(self._root)
            removed = self._evict(2 * room_of(max(size, 1)))
            return bool(swept or removed.objects)

    def note_room(self, *, full: bool) -> None:
        """Note whether the disk was still full after `make_room`: then nobody tries for a while.

        Else a disk that others fill would cost all objects, one failed put after the other.
        """
        first, last = _RESTS_S
        if full:
            self._full_until = time.monotonic() + self._full_s
        self._full_s = min(2 * self._full_s, last) if full else first

    def end(self) -> None:
        """End what this process began; what it counted, others take over. Not for a fork."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._ended = True
            self.child.end()
            self.ledger.close()
            with suppress(OSError), self.ledger.hold() as held:
                if held:
                    self.ledger.fold()

    def abandon(self) -> None:
        """Let go of what is the parent's in a forked process, whose locks may never come free."""
        self.ledger.abandon()
        self.child.abandon()

    def _look(self, room: int) -> int:
        """Look at usage, and see to it that somebody evicts if need be; return usage.

        ``room`` is what is about to be stored.
        """
        self._since = room
        try:
            reading, narrow = self._read()
            self._share = narrow.share // max(reading.records, 1)
            self._over = narrow.exceeds(self._root, reading, room)
            unknown = not (self._begun and self._limits.believes(reading))
            self._begun = True
            if (unknown or self._limits.nears(self._root, reading)) and not self._ended:
                self.child.ensure()
        except OSError:  # the root is going, and the next put says so
            return 0
        return reading.bytes

    def _read(self) -> tuple[Reading, Limits]:
        """Return what the ledger says, and the limits that all together keep.

        Where it cannot be had, or knows nothing of what is there, the folders are asked: a put
        fails for no bookkeeping, and no bound is passed for want of it.
        """
        try:
            reading = self.ledger.read()
            narrow = strictest(self._root, self._limits)
            self._fault = None
        except OSError as error:
            self._fault = f"{USAGE} cannot be used, and writers evict by themselves: {error}"
            self._adrift = True
            reading, narrow = Reading(0, 0, 1, 0, 0, Table()), self._limits
        else:
            if self._limits.believes(reading):
                self._knew, self._adrift = True, False
                return reading, narrow
            if self._knew and not reading.table.looks:
                self._adrift = True
            # A ledger that knew nothing yet is for whoever evicts to fill: no first put waits.
            if not (self.child.fault or self._adrift):
                return reading, narrow
        if narrow.max_bytes is not None:
            reading = reading._replace(bytes=self._reckoning.read())
        return reading, narrow

    def _evict(self, need: int) -> Removed:
        """Remove pages of so many bytes together, if so many can be found and removed."""
        try:
            removed = self._evictor.evict(need, held=False)
        except OSError:
            return Removed(0, 0, 0.0)
        self._reckoning.add(-removed.bytes)
        return removed

    def _help(self, room: int) -> None:
        """Evict a little more than is about to be stored, unless all is well by now."""
        limit = self._limits.max_bytes
        with self._lock:
            usage = self._look(room)
            if not self._over:
                return
            if time.monotonic() >= self._helpless_until:
                removed = self._evict(2 * room)
                if removed.objects:
                    return
                self._helpless_until = time.monotonic() + _RESTS_S[0]
        if limit is not None and usage + room > limit * 105 // 100:
            raise StoreError(
                f"the store is full: {usage} bytes of max_bytes {limit}, "
                "and nothing could be evicted"
            )
