"""Memory: what the transport may read and write, and where in it a buffer lies. It moves no bytes.

RDMA reaches registered memory only. What lies elsewhere goes through rooms of our own: a few, of
one size, so that what a store takes is bounded.
"""

import mmap
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import addressof, c_char
from queue import LifoQueue
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple, Self
from weakref import finalize

import numpy as np

from unikv.backends.mooncake_codes import refusal
from unikv.backends.mooncake_native import Native
from unikv.errors import StoreError

ROOMS = 4
"""In how many rooms the bounce buffer is cut: as many calls can bounce at a time."""

_LOOK_BYTES = 64


class Region(NamedTuple):
    """Registered memory."""

    start: int
    stop: int
    held: object  # what keeps the memory, where nobody can tell when its owner lets it go


class Room(NamedTuple):
    """Registered memory of our own, lent to one call."""

    address: int
    view: memoryview


class Spot(NamedTuple):
    """A part of a room."""

    room: Room
    at: int

    @property
    def address(self) -> int:
        """Where its bytes begin."""
        return self.room.address + self.at


class Bounce:
    """What one call copies through: one room, filled from its front, given back at the end."""

    __slots__ = ("_lent", "_memory", "_room", "_used")

    def __init__(self, memory: "Memory") -> None:
        self._memory = memory
        self._lent: AbstractContextManager[Room] | None = None
        self._room: Room | None = None
        self._used = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._room is not None and self._lent is not None:
            self._lent.__exit__(kind, error, trace)

    def take(self, size: int) -> Spot | None:
        """Return room for ``size`` bytes, None if there is no more.

        Raises:
            OSError: it is more than a room holds, and cannot be had or registered.
        """
        if self._room is None:
            self._lent = self._memory.borrow(size)
            self._room = self._lent.__enter__()
        elif self._used + size > self._room.view.nbytes:
            return None
        at, self._used = self._used, self._used + size
        return Spot(self._room, at)


class Memory:
    """The registered memory of one client: what its user gave, and ``size`` bytes of our own."""

    def __init__(self, native: Native, size: int) -> None:
        self._native = native
        self._regions: tuple[Region, ...] = ()
        self._lock = Lock()
        self._gone: deque[int] = deque()  # where regions begin whose memory was let go
        self._ends: list[finalize[[int], Any]] = []
        self.room_bytes = size // ROOMS // mmap.PAGESIZE * mmap.PAGESIZE
        self._rooms: LifoQueue[Room] = LifoQueue()
        self._whole = whole = memoryview(mmap.mmap(-1, self.room_bytes * ROOMS))
        start = self.add(whole)
        for at in range(0, whole.nbytes, self.room_bytes):
            self._rooms.put(Room(start + at, whole[at : at + self.room_bytes]))
        self._looks: LifoQueue[Room] = LifoQueue()
        page = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        start = self.add(page)
        for at in range(0, _LOOK_BYTES * ROOMS, _LOOK_BYTES):
            self._looks.put(Room(start + at, page[at : at + _LOOK_BYTES]))

    def add(self, view: memoryview) -> int:
        """Register memory and return its address; what is registered already stays as it is.

        Raises:
            StoreError: it is read-only, scattered or empty, overlaps other registered memory, or
                the library refuses it.
        """
        if view.readonly or not view.c_contiguous or not view.nbytes:
            raise StoreError(
                f"register {view.nbytes} bytes (read-only: {view.readonly}, contiguous: "
                f"{view.c_contiguous}): want a writable run of at least one byte"
            )
        start = address_of(view)
        stop = start + view.nbytes
        with self._lock:
            self._forget_gone()
            for first, end, _ in self._regions:
                if first <= start and stop <= end:
                    return start
                if start < end and first < stop:
                    raise StoreError(
                        f"register {view.nbytes} bytes that overlap {end - first} registered "
                        "before: register the whole of it once"
                    )
            code = self._native.register_buffer(start, view.nbytes)
            if code:
                raise StoreError(f"register {view.nbytes} bytes: {refusal(code)}")
            # The latest is an arena, and looked at first.
            self._regions = (Region(start, stop, self._watch(view, start)), *self._regions)
        return start

    def find(self, view: memoryview) -> int:
        """Return the address of a view that lies in registered memory; 0 for any other."""
        if self._gone:
            with self._lock:
                self._forget_gone()
        start = address_of(view) if view.readonly else addressof(c_char.from_buffer(view))
        stop = start + view.nbytes
        for first, end, _ in self._regions:
            if first <= start and stop <= end:
                return start
        return 0

    @contextmanager
    def borrow(self, size: int) -> Iterator[Room]:
        """Lend a room of at least ``size`` bytes; wait for one if all are lent.

        What no room holds gets one of its own for the time: as much again as its owner holds.
        """
        if size > self.room_bytes:
            view = memoryview(mmap.mmap(-1, size))
            address = address_of(view)
            code = self._native.register_buffer(address, size)
            if code:
                raise StoreError(f"register {size} bytes: {refusal(code)}")
            try:
                yield Room(address, view)
            finally:
                self._native.unregister_buffer(address)
            return
        room = self._rooms.get()
        try:
            yield room
        finally:
            self._rooms.put(room)

    @contextmanager
    def look(self) -> Iterator[Room]:
        """Lend 64 bytes to look at a tiny object, also to who has a room: these are others.

        Whoever waits for a second room may wait for one who does so, too, and for ever.
        """
        room = self._looks.get()
        try:
            yield room
        finally:
            self._looks.put(room)

    def forget(self) -> None:
        """Let go of all memory, once the client is closed."""
        for end in self._ends:
            end.detach()
        self._regions = ()

    def _watch(self, view: memoryview, start: int) -> object:
        """See to it that a region is forgotten when its owner lets go of the memory.

        Returns:
            What has to be held: the memory itself, where its owner cannot be watched.
        """
        try:
            end = finalize(view.obj, self._gone.append, start)
        except TypeError:
            return view
        end.atexit = False
        self._ends = [other for other in self._ends if other.alive] + [end]
        return None

    def _forget_gone(self) -> None:
        """Make the transport forget what its owner let go: other memory may lie there by now."""
        while self._gone:
            start = self._gone.popleft()
            self._native.unregister_buffer(start)
            self._regions = tuple(region for region in self._regions if region.start != start)


def address_of(view: memoryview) -> int:
    """Return where the bytes of a view begin, which has some."""
    if view.readonly:
        return int(np.frombuffer(view, np.uint8).ctypes.data)
    return addressof(c_char.from_buffer(view))
