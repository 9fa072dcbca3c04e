"""Writing: stores objects through sessions, which tell who stores. It reads no object.

items → ranges → session → end. The library's plain put says "stored" of what it did not store: of
a key that holds other bytes, or that somebody is writing. A session is refused there.
"""

from collections.abc import Sequence
from typing import NamedTuple

from unikv.backends.batch import Batch, item_bytes
from unikv.backends.held_keys import HeldKeys
from unikv.backends.mooncake_codes import (
    EXISTS,
    INVALID,
    NO_SPACE,
    NOT_FOUND,
    NOT_READY,
    OTHER_CLIENT,
    passing,
    refusal,
)
from unikv.backends.mooncake_marks import EMPTY, MARK_BYTES, REPLACED
from unikv.backends.mooncake_memory import Bounce, Memory
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_overwrite import Overwriter, Successor
from unikv.backends.mooncake_pace import Pace
from unikv.backends.mooncake_pauses import pauses
from unikv.backends.mooncake_put_sessions import write_sessions
from unikv.backends.mooncake_ranges import DIRECT_BYTES, Columns, Ranges, flat, gather
from unikv.backends.mooncake_sizes import Sizes
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Buffer, Item, Outcome, check_key

GATHER_BYTES = 256 << 10
"""Objects of several buffers that are no larger are copied together: one range is faster."""

_BUSY = (NO_SPACE, OTHER_CLIENT, NOT_FOUND)
"""What a moment later may go: room, a key taken over, a master that was restarted meanwhile."""


class Pending(NamedTuple):
    """An object that is to be stored."""

    position: int
    key: str
    views: Sequence[memoryview]  # none of them empty
    size: int  # of the object meant: the views hold more where they are a mark


class Writer:
    """Stores objects through one client, waiting ``wait_s`` at most for room or another writer."""

    def __init__(
        self, native: Native, memory: Memory, sizes: Sizes, pace: Pace, wait_s: float
    ) -> None:
        self._native = native
        self._pace = pace
        self._memory = memory
        self._sizes = sizes
        self._wait_s = wait_s
        self._held = HeldKeys()
        self._overwriter = Overwriter(native, memory, wait_s)

    def put(self, items: Sequence[Item], batch: Batch, *, replace: bool) -> None:
        """Store each object, and note in ``batch`` what became of it."""
        todo: list[Pending] = []
        for position, (key, buffers) in enumerate(items):
            try:
                check_key(key)
                todo.append(_pending(position, key, buffers))
            except (KeyFormatError, StoreError) as error:
                batch.fail(position, f"put {key!r:.200}", error)
        while todo:
            keys = {item.key for item in todo}
            later: list[Pending] = []
            if len(keys) < len(todo):
                first: dict[str, Pending] = {}
                later = [item for item in todo if first.setdefault(item.key, item) is not item]
                todo = list(first.values())
            # The library mixes up two writers of one key in one client.
            with self._held.hold(keys):
                self._put(todo, batch, replace=replace)
            todo = later

    def _put(self, todo: Sequence[Pending], batch: Batch, *, replace: bool) -> None:
        at = 0
        while at < len(todo):
            ranges = Ranges()
            with Bounce(self._memory) as bounce:
                at, some = self._fill(ranges, todo, at, bounce, batch)
                there = self._store(ranges.columns, some, batch, replace=replace) if some else []
            # Without the room: who waits for a second one may wait for somebody who does, too.
            self._overwriter.put(
                [Successor(item.position, item.key, item.views) for item in there], batch
            )

    def _fill(
        self, ranges: Ranges, todo: Sequence[Pending], at: int, bounce: Bounce, batch: Batch
    ) -> tuple[int, list[Pending]]:
        """Gather objects until a session is full; return where it ended, and the objects."""
        some: list[Pending] = []
        while at < len(todo):
            position, key, views, size = todo[at]
            if not ranges.takes(size):
                break
            if len(views) == 1 and (pointer := self._memory.find(views[0])):
                ranges.add(position, key, 0, views[0].nbytes, pointer)
            else:
                try:
                    fits = self._gather(ranges, todo[at], bounce)
                except OSError as error:
                    batch.fail(position, f"put {key!r}", error)
                    at += 1
                    continue
                if not fits:
                    break
            some.append(todo[at])
            at += 1
        return at, some

    def _gather(self, ranges: Ranges, item: Pending, bounce: Bounce) -> bool:
        """Add an object whose buffers are copied where they must be; return whether it fits."""
        position, key, views, size = item
        pointers = self._pointers(views, size) if len(views) > 1 else [0]
        copied = [view for view, pointer in zip(views, pointers, strict=True) if not pointer]
        place = 0
        if copied:
            spot = bounce.take(sum(view.nbytes for view in copied))
            if spot is None:
                return False
            gather(copied, spot)
            place = spot.address
        offset = 0
        for view, pointer in zip(views, pointers, strict=True):
            ranges.add(position, key, offset, view.nbytes, pointer or place)
            place += 0 if pointer else view.nbytes
            offset += view.nbytes
        return True

    def _pointers(self, views: Sequence[memoryview], size: int) -> list[int]:
        """Return of each of several views where it can be sent from, 0 if it is to be copied."""
        find = self._memory.find
        if size > GATHER_BYTES:
            return [find(view) if view.nbytes >= DIRECT_BYTES else 0 for view in views]
        pointers = [at := find(views[0])]
        for view, before in zip(views[1:], views, strict=False):
            if not at or find(view) != at + before.nbytes:
                return [0] * len(views)
            pointers.append(at := at + before.nbytes)
        return pointers

    def _store(
        self, columns: Columns, items: Sequence[Pending], batch: Batch, *, replace: bool
    ) -> list[Pending]:
        """Store what can be stored by sessions; return what has to be overwritten."""
        overwrite: list[Pending] = []
        rows: Sequence[int] = range(len(items))
        waits: dict[int, int] = {}  # a row, and the code for which it waits
        for _ in pauses(self._wait_s):
            codes = write_sessions(self._native, columns.rows(rows), self._pace)
            if not any(codes):
                return overwrite
            found = dict(zip(rows, codes, strict=True))
            waits = {row: code for row, code in found.items() if code in _BUSY}
            there = {row: code for row, code in found.items() if code in (EXISTS, INVALID)}
            for row in found.keys() - waits.keys() - there.keys():
                if found[row]:
                    batch.fail(items[row].position, f"put {items[row].key!r}", refusal(found[row]))
            if replace:
                overwrite += (items[row] for row in there)
            elif there:
                overwrite += self._look(items, there, waits, batch)
            rows = list(waits)
            if not rows:
                return overwrite
        for row, code in waits.items():
            if code == NOT_READY:  # its writer is slow or gone: ours takes over
                overwrite.append(items[row])
            else:
                error = passing(f"{refusal(code)}; waited {self._wait_s:g} s")
                batch.fail(items[row].position, f"put {items[row].key!r}", error)
        return overwrite

    def _look(
        self, items: Sequence[Pending], there: dict[int, int], waits: dict[int, int], batch: Batch
    ) -> list[Pending]:
        """Compare sizes with what is there: EXISTED if equal; return what is to be overwritten."""
        try:
            sizes = self._sizes.ask([items[row].key for row in there])
        except StoreError as error:
            for row in there:
                batch.fail(items[row].position, f"put {items[row].key!r}", error)
            return []
        overwrite: list[Pending] = []
        for row, code in there.items():
            size = sizes.get(items[row].key)
            if size == items[row].size:
                batch.codes[items[row].position] = Outcome.EXISTED
            elif size is None and (code == EXISTS or self._sizes.awaited(items[row].key)):
                waits[row] = NOT_READY
            else:  # of another size; or barred by a session of ours that failed
                overwrite.append(items[row])
        return overwrite


def _pending(position: int, key: str, buffers: Sequence[Buffer]) -> Pending:
    """Return an object to store, once it is known to be one that Mooncake can hold."""
    view = buffers[0] if len(buffers) == 1 else None
    if (  # the common case, in line: all below costs as much as all else of a small object
        isinstance(view, memoryview)
        and view.nbytes > MARK_BYTES
        and view.format == "B"
        and view.ndim == 1
        and view.c_contiguous
    ):
        return Pending(position, key, (view,), view.nbytes)
    size = item_bytes(buffers)
    if not size:
        return Pending(position, key, (memoryview(EMPTY),), 0)
    views = flat(buffers)
    if size == MARK_BYTES and b"".join(views) in (EMPTY, REPLACED):
        raise StoreError(f"these {size} bytes stand for an object that is not there: add a byte")
    return Pending(position, key, views, size)
