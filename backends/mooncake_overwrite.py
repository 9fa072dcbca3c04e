"""Overwriting: puts objects in place of others, so that a reader sees one of them whole or none.

mark → object. The library replaces an object of the same size where it lies, while others read it;
one of another size it leaves to them and writes elsewhere. So every object goes by way of a mark.
"""

import mmap
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from unikv.backends.batch import Batch
from unikv.backends.mooncake_codes import NO_SPACE, TRANSFER_FAIL, passing, refusal
from unikv.backends.mooncake_marks import MARK_BYTES, REPLACED
from unikv.backends.mooncake_memory import Bounce, Memory
from unikv.backends.mooncake_native import Native
from unikv.backends.mooncake_pace import FIRST_RANGES, STALL_S
from unikv.backends.mooncake_pauses import pauses
from unikv.backends.mooncake_ranges import gather


class Successor(NamedTuple):
    """An object that comes in the place of another."""

    position: int
    key: str
    views: Sequence[memoryview]  # none of them empty


class Placed(NamedTuple):
    """A successor, as one run of registered memory."""

    position: int
    key: str
    pointer: int
    size: int


class Overwriter:
    """Overwrites objects through one client, waiting ``wait_s`` at most for room."""

    def __init__(self, native: Native, memory: Memory, wait_s: float) -> None:
        self._native = native
        self._memory = memory
        self._wait_s = wait_s
        self._page = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._page[:MARK_BYTES] = REPLACED
        self._mark = memory.add(self._page)

    def put(self, items: Sequence[Successor], batch: Batch) -> None:
        """Store each object whatever is there, and note in ``batch`` what became of it."""
        marks = [Placed(item.position, item.key, self._mark, MARK_BYTES) for item in items]
        marked = self._store(marks, batch)
        todo = [item for item in items if item.position in marked]
        at = 0
        while at < len(todo):
            with Bounce(self._memory) as bounce:
                at, placed = self._place(todo, at, bounce, batch)
                self._store(placed, batch)

    def _place(
        self, items: Sequence[Successor], at: int, bounce: Bounce, batch: Batch
    ) -> tuple[int, list[Placed]]:
        """Lay out as many objects as a room holds; return where that ended."""
        placed: list[Placed] = []
        while at < len(items):
            position, key, views = items[at]
            size = sum(view.nbytes for view in views)
            pointer = self._memory.find(views[0]) if len(views) == 1 else 0
            if not pointer:
                try:
                    spot = bounce.take(size)
                except OSError as error:
                    batch.fail(position, f"put {key!r}", error)
                    at += 1
                    continue
                if spot is None:
                    break
                gather(views, spot)
                pointer = spot.address
            placed.append(Placed(position, key, pointer, size))
            at += 1
        return at, placed

    def _store(self, todo: Sequence[Placed], batch: Batch) -> set[int]:
        """Store objects whatever is there; return the positions of those that are stored."""
        stored: set[int] = set()
        for _ in pauses(self._wait_s):
            if not todo:
                return stored
            codes = self._upsert(todo)
            waits = []
            for item, code in zip(todo, codes, strict=True):
                if code == NO_SPACE:
                    waits.append(item)
                elif code:
                    batch.fail(item.position, f"put {item.key!r}", refusal(code))
                else:
                    stored.add(item.position)
            todo = waits
        for item in todo:
            error = passing(f"{refusal(NO_SPACE)}; waited {self._wait_s:g} s")
            batch.fail(item.position, f"put {item.key!r}", error)
        return stored

    def _upsert(self, items: Sequence[Placed]) -> list[int]:
        """Store objects; after a wait for an owner that does not answer, no more."""
        codes: list[int] = []
        for at in range(0, len(items), FIRST_RANGES):
            some = items[at : at + FIRST_RANGES]
            begun = monotonic()
            codes += self._native.batch_upsert_from(
                [item.key for item in some],
                [item.pointer for item in some],
                [item.size for item in some],
            )
            if monotonic() - begun > STALL_S and TRANSFER_FAIL in codes:
                break
        return codes + [TRANSFER_FAIL] * (len(items) - len(codes))
