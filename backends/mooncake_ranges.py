"""Ranges: what one session moves, as the columns that the library takes. They move nothing."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unikv.backends.mooncake_memory import Spot
from unikv.store import Buffer

CALL_BYTES = 32 << 20
"""Bytes that one session moves: a fraction of a second, where the shortest lease is one."""

CALL_KEYS = 2048
"""Objects of one session, for the same reason."""

DIRECT_BYTES = 16 << 10
"""Where there are several buffers, those smaller than this are copied together: a range of its own
costs some 30 microseconds, more than copying so many bytes."""


class Columns(NamedTuple):
    """Ranges of different objects: what the library takes, a row for each object."""

    keys: Sequence[str]
    pointers: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    offsets: Sequence[Sequence[int]]
    wants: Sequence[int]  # bytes of each object's ranges together

    def rows(self, rows: Sequence[int]) -> "Columns":
        """Return some of the rows."""
        if len(rows) == len(self.keys):
            return self
        keys, pointers, sizes, offsets, wants = self
        return Columns(
            [keys[row] for row in rows],
            [pointers[row] for row in rows],
            [sizes[row] for row in rows],
            [offsets[row] for row in rows],
            [wants[row] for row in rows],
        )

    def part(self, first: int, stop: int) -> "Columns":
        """Return a run of the rows."""
        if first == 0 and stop >= len(self.keys):
            return self
        keys, pointers, sizes, offsets, wants = self
        to = slice(first, stop)
        return Columns(keys[to], pointers[to], sizes[to], offsets[to], wants[to])


class Ranges:
    """Gathers ranges by key, as many as one session moves."""

    __slots__ = ("index", "offsets", "pointers", "positions", "sizes", "total", "wants")

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.positions: list[list[int]] = []  # of the items or spans, by key
        self.pointers: list[list[int]] = []
        self.sizes: list[list[int]] = []
        self.offsets: list[list[int]] = []
        self.wants: list[int] = []
        self.total = 0

    @property
    def columns(self) -> Columns:
        """The ranges so far."""
        return Columns(list(self.index), self.pointers, self.sizes, self.offsets, self.wants)

    def takes(self, size: int) -> bool:
        """Tell whether ranges of ``size`` bytes may join."""
        return not self.total or (
            self.total + size <= CALL_BYTES and len(self.positions) < CALL_KEYS
        )

    def add(self, position: int, key: str, offset: int, size: int, pointer: int) -> None:
        """Add a range; one that goes on where the last of its key ended is joined to it."""
        at = self.index.get(key)
        self.total += size
        if at is None:
            self.index[key] = len(self.positions)
            self.positions.append([position])
            self.pointers.append([pointer])
            self.sizes.append([size])
            self.offsets.append([offset])
            self.wants.append(size)
            return
        self.wants[at] += size
        if self.positions[at][-1] != position:
            self.positions[at].append(position)
        last = self.sizes[at][-1]
        if self.offsets[at][-1] + last == offset and self.pointers[at][-1] + last == pointer:
            self.sizes[at][-1] += size
            return
        self.pointers[at].append(pointer)
        self.sizes[at].append(size)
        self.offsets[at].append(offset)


def gather(views: Sequence[memoryview], spot: Spot) -> None:
    """Copy views to a room, in order."""
    room, at = spot.room.view, spot.at
    for view in flat(views):
        room[at : at + view.nbytes] = view
        at += view.nbytes


def scatter(spot: Spot, views: Sequence[memoryview]) -> None:
    """Copy what lies in a room to views, in order."""
    room, at = spot.room.view, spot.at
    for view in flat(views):
        view[:] = room[at : at + view.nbytes]
        at += view.nbytes


def flat(views: Iterable[Buffer]) -> list[memoryview]:
    """Return those of some buffers that hold bytes, as runs of bytes."""
    runs = []
    for buffer in views:
        view = memoryview(buffer)
        if view.nbytes:
            runs.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    return runs
