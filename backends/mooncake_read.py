"""Reading: fills views from ranges of objects, straight where views lie in registered memory.

spans → ranges → session → views. It writes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from unikv.backends.batch import Batch, short_object, span_bytes
from unikv.backends.mooncake_codes import (
    ABSENT,
    INVALID,
    LEASE_EXPIRED,
    NO_MEMORY_REPLICA,
    passing,
    refusal,
)
from unikv.backends.mooncake_disk import DiskReader
from unikv.backends.mooncake_marks import MARK_BYTES
from unikv.backends.mooncake_memory import Bounce, Memory, Spot
from unikv.backends.mooncake_ranges import DIRECT_BYTES, Ranges, flat, scatter
from unikv.backends.mooncake_sessions import Sessions
from unikv.backends.mooncake_sizes import Sizes
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Outcome, Span, check_key

_FAR = 2**63
"""Where no object reaches, nor a number of the library."""

TRIES = 5
"""How often a range is asked for whose session ended under it."""


class Reader:
    """Reads spans through one client."""

    def __init__(self, memory: Memory, sessions: Sessions, sizes: Sizes, disk: DiskReader) -> None:
        self._memory = memory
        self._sessions = sessions
        self._sizes = sizes
        self._disk = disk

    def read(self, spans: Sequence[Span], batch: Batch) -> None:
        """Fill the views of spans, and note in ``batch`` what became of each."""
        todo: list[int] = []
        small: list[int] = []  # what may be of a mark, is empty or far: the object's size decides
        checked: str | None = None
        for position, (key, start, stop, into) in enumerate(spans):
            try:
                if key != checked:
                    check_key(key)
                    checked = key
                # The common case in line: a call would cost as much as all else of a small range.
                view = into[0] if len(into) == 1 else None
                if not (
                    isinstance(view, memoryview)
                    and 0 <= start < stop == start + view.nbytes
                    and view.c_contiguous
                    and not view.readonly
                ):
                    span_bytes(spans[position])
            except (KeyFormatError, StoreError, ValueError) as error:  # a view that was released
                batch.fail(position, f"get {key!r:.200}", error)
                continue
            (todo if start < stop and MARK_BYTES < stop < _FAR else small).append(position)
        todo += self._sift(spans, small, batch)
        again: Mapping[int, int] = {}
        for turn in range(TRIES):
            if turn:
                todo = self._sift(spans, again, batch)
            if not todo:
                return
            again = self._pass(spans, todo, batch)
        for position, code in again.items():
            key, start, stop, _ = spans[position]
            cause = passing(f"{TRIES} tries: {refusal(code)}")
            batch.fail(position, f"get {key!r} {start}..{stop}", cause)

    def _sift(self, spans: Sequence[Span], positions: Iterable[int], batch: Batch) -> list[int]:
        """Return the positions whose range their object has; settle the others by its size."""
        asked = list(positions)
        try:
            sizes = self._sizes.ask(list({spans[position].key: None for position in asked}))
        except StoreError as error:
            for position in asked:
                batch.fail(position, f"get {spans[position].key!r}", error)
            return []
        found: list[int] = []
        for position in asked:
            key, start, stop, _ = spans[position]
            size = sizes.get(key)
            if size is None:
                batch.codes[position] = Outcome.MISS
            elif stop > size:
                batch.fail(position, f"get {key!r}", short_object(size, start, stop))
            elif start < stop and size > MARK_BYTES:
                found.append(position)
            elif start < stop:
                self._read_tiny(spans[position], position, size, batch)
        return found

    def _read_tiny(self, span: Span, position: int, size: int, batch: Batch) -> None:
        """Read an object whole that is no larger than a mark, which may have its place by now."""
        key, start, stop, into = span
        try:
            data = self._sizes.whole(key, size)
        except StoreError as error:
            batch.fail(position, f"get {key!r} {start}..{stop}", error)
            return
        if data is None:
            batch.codes[position] = Outcome.MISS
            return
        for view in flat(into):
            view[:] = data[start : start + view.nbytes]
            start += view.nbytes

    def _pass(self, spans: Sequence[Span], todo: Sequence[int], batch: Batch) -> dict[int, int]:
        """Read once what is to be read; return the codes of those that are worth another try."""
        again: dict[int, int] = {}
        on_disk: dict[str, list[int]] = {}
        at = 0
        while at < len(todo):
            ranges = Ranges()
            with Bounce(self._memory) as bounce:
                at, bounced = self._fill(ranges, spans, todo, at, bounce, batch)
                columns = ranges.columns
                codes = self._sessions.read(columns)
                if codes != columns.wants:
                    self._settle(ranges, codes, spans, batch, again, on_disk)
                for position, spot in bounced:
                    if batch.codes[position] == Outcome.OK and position not in again:
                        scatter(spot, spans[position].into)
        self._disk.read(on_disk, spans, batch)
        return again

    def _fill(
        self,
        ranges: Ranges,
        spans: Sequence[Span],
        todo: Sequence[int],
        at: int,
        bounce: Bounce,
        batch: Batch,
    ) -> tuple[int, list[tuple[int, Spot]]]:
        """Gather ranges until a session is full; return where it ended, and what has to bounce."""
        find = self._memory.find
        bounced: list[tuple[int, Spot]] = []
        while at < len(todo):
            position = todo[at]
            key, start, stop, into = spans[position]
            large = stop > MARK_BYTES
            # Else more than a mark has, so that it fails where there is one by now.
            size = (stop if large else MARK_BYTES + 1) - start
            if not ranges.takes(size):
                break
            if large and len(into) == 1 and (pointer := find(into[0])):
                ranges.add(position, key, start, size, pointer)
            elif large and len(into) > 1 and (pointers := self._direct(into)):
                for view, pointer in zip(flat(into), pointers, strict=True):
                    ranges.add(position, key, start, view.nbytes, pointer)
                    start += view.nbytes
            else:
                try:
                    spot = bounce.take(size)
                except OSError as error:
                    batch.fail(position, f"get {key!r} {start}..{stop}", error)
                    at += 1
                    continue
                if spot is None:
                    break
                ranges.add(position, key, start, size, spot.address)
                bounced.append((position, spot))
            at += 1
        return at, bounced

    def _direct(self, into: Sequence[memoryview]) -> list[int]:
        """Return where views lie if all lie in registered memory and none is small, else none."""
        views = flat(into)
        if min(view.nbytes for view in views) < DIRECT_BYTES:
            return []
        pointers = [self._memory.find(view) for view in views]
        return pointers if all(pointers) else []

    def _settle(
        self,
        ranges: Ranges,
        codes: Sequence[int],
        spans: Sequence[Span],
        batch: Batch,
        again: dict[int, int],
        on_disk: dict[str, list[int]],
    ) -> None:
        """Say of each key that was not read whole what that means for its spans."""
        for key, positions, code, want in zip(
            ranges.index, ranges.positions, codes, ranges.wants, strict=True
        ):
            if code == want:
                continue
            if code == NO_MEMORY_REPLICA:
                on_disk[key] = positions
            for position in positions:
                if code in ABSENT:
                    batch.codes[position] = Outcome.MISS
                elif code in (INVALID, LEASE_EXPIRED):
                    again[position] = code
                elif code != NO_MEMORY_REPLICA:
                    _, start, stop, _ = spans[position]
                    error = refusal(code) if code < 0 else passing(f"{code} of {want} bytes came")
                    batch.fail(position, f"get {key!r} {start}..{stop}", error)
