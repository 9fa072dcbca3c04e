"""Disk: objects whose memory was given up, and which an owner or a shared file system has on disk.

The library reads such objects whole only: not in a session, and their ranges fail. It writes none.
"""

from collections.abc import Mapping, Sequence
from time import monotonic

from unikv.backends.batch import Batch, short_object
from unikv.backends.mooncake_codes import ABSENT, INVALID, NOT_FOUND, passing, refusal
from unikv.backends.mooncake_marks import MARK_BYTES, size_meant
from unikv.backends.mooncake_memory import Memory, Room, Spot
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_pace import STALL_S
from unikv.backends.mooncake_ranges import scatter
from unikv.store import Outcome, Span


class DiskReader:
    """Reads whole objects into rooms, and spans from there."""

    def __init__(self, native: Native, memory: Memory) -> None:
        self._native = native
        self._memory = memory

    def read(
        self, positions: Mapping[str, Sequence[int]], spans: Sequence[Span], batch: Batch
    ) -> None:
        """Fill the spans at ``positions``, which are given by key."""
        stalled = 0  # the code of an owner that did not answer: each wait would be as long
        for key, mine in positions.items():
            error: Exception
            begun = monotonic()
            try:
                code = stalled or self._read(key, mine, spans, batch)
                error = refusal(code) if code < 0 else passing(f"{code} bytes came")
            except (OSError, OverflowError) as no_room:  # the master may tell of any size
                code, error = INVALID, no_room
            if monotonic() - begun > STALL_S and code not in (0, *ABSENT):
                stalled = code
            for position in mine if code else ():
                if code in ABSENT:
                    batch.codes[position] = Outcome.MISS
                else:
                    batch.fail(position, f"get {key!r} from disk", error)

    def _read(self, key: str, mine: Sequence[int], spans: Sequence[Span], batch: Batch) -> int:
        """Read an object and serve its spans; return 0, or another number if that failed."""
        size = self._native.get_size(key)
        if size <= 0:
            return size or NOT_FOUND
        with self._memory.borrow(size) as room:
            [code] = self._native.batch_get_into([key], [room.address], [size])
            if code == size:
                self._serve(room, size, mine, spans, batch)
                return 0
        return code or NOT_FOUND

    def _serve(
        self,
        room: Room,
        size: int,
        positions: Sequence[int],
        spans: Sequence[Span],
        batch: Batch,
    ) -> None:
        """Copy from an object in a room what spans want of it."""
        meant = size_meant(bytes(room.view[:size])) if size == MARK_BYTES else size
        for position in positions:
            key, start, stop, into = spans[position]
            if meant is None:
                batch.codes[position] = Outcome.MISS
            elif stop > meant:
                batch.fail(position, f"get {key!r}", short_object(meant, start, stop))
            else:
                scatter(Spot(room, start), into)
