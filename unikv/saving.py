"""Saving: from the pools to stored objects, one window of pages at a time. It reads no object.

pool → pack → slot → Write order: header → store.put
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from unikv.arena import ALIGN, Slot
from unikv.guard import Pending
from unikv.in_flight import CANCELLED
from unikv.lane import Lane, Selection, take
from unikv.matching import fits
from unikv.orders import Write, WriteDone, WritePage
from unikv.recent import RecentKeys
from unikv.reports import Failure, SaveReport
from unikv.stopwatch import Stopwatch
from unikv.store_call import StoreCall

WINDOW_BYTES = 8 << 20
WINDOWS = 4
"""A save is cut into so many windows, unless they would be smaller than `WINDOW_BYTES`."""


_OVER = ("timed_out", "breaker_open")
"""How an order fails that no other order of the same call can do better."""


class Lack(NamedTuple):
    """A page of which this rank is to store some chunks."""

    row: int  # in the selection
    at: int  # position in the call's pages
    chunks: Sequence[int]  # positions in the plan's chunks


@dataclass(slots=True, eq=False)
class Portion:
    """One component's part of a save: what is to be stored, and what became of it."""

    lane: Lane
    selection: Selection | None = None  # what is being stored just now
    unheld: int = 0
    lacks: Sequence[Lack] = ()
    pages: int = 0  # that this rank was to write
    stored: int = 0
    existed: int = 0
    written: int = 0
    failed: list[Failure] = field(default_factory=list)
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def bytes(self) -> int:
        """Staging that all it lacks takes."""
        return len(self.lacks) * self.lane.write.page_bytes if self.lacks else 0

    def name(self, page: str) -> str:
        """Return what `InFlight` knows a page of this component by."""
        return f"{self.lane.name} {page}"

    def settle(
        self,
        pages: Sequence[str],
        selection: Selection,
        shared: Mapping[str, object],
        lost: Mapping[str, str],
    ) -> Selection:
        """Count pages ``shared`` with equal saves, and those they ``lost``; return what is left.

        That is what a save gave up that was cancelled.
        """
        chunks, again = range(len(self.lane.write.chunks)), list[int]()
        for row in selection.rows:
            name = self.name(pages[row])
            if name not in shared:
                continue
            if lost.get(name) == CANCELLED:
                again.append(row)
            elif name in lost:
                self.pages += self.lane.writes(pages[row])
                self.lose(pages, [Lack(row, row, chunks)], lost[name])
            elif self.lane.writes(pages[row]):
                self.pages += 1
                self.existed += len(chunks)
        return selection.keep(again)

    def lose(self, pages: Sequence[str], lacks: Sequence[Lack], reason: str) -> None:
        """Note chunks that could not be stored."""
        tails = self.lane.write.key_tails
        self.failed += (
            Failure(pages[at] + tails[c], at, reason) for _, at, chunks in lacks for c in chunks
        )

    def report(self) -> SaveReport:
        """Return what became of it."""
        return SaveReport(
            stored=self.stored,
            existed=self.existed,
            failed=tuple(self.failed),
            bytes_written=self.written,
            pages=self.pages,
            unheld=self.unheld,
            seconds=self.watch.seconds,
        )


class _Window(NamedTuple):
    portion: Portion
    lacks: Sequence[Lack]
    pending: Pending


@dataclass(slots=True, eq=False)
class Saver:
    """Stores what portions lack, through a slot that holds at least one page of each. Close it."""

    call: StoreCall
    slot: Slot
    pages: Sequence[str]
    start: int  # position of the first page in its sequence
    damaged: RecentKeys
    under_way: list[_Window] = field(default_factory=list)

    def run(self, portions: Sequence[Portion], packed: Callable[[Sequence[Pending]], None]) -> None:
        """Store all of it; tell ``packed`` when the pools may change, with what is still to end.

        One half of the slot is packed while the other is being stored.
        """
        most = max(portion.lane.write.page_bytes for portion in portions)
        half = self.slot.size // 2 // ALIGN * ALIGN
        much = self.slot.size >= 2 * WINDOW_BYTES or self.slot.size < sum(p.bytes for p in portions)
        room, two = (half, 2) if much and half >= most else (self.slot.size, 1)
        windows = [(p, lacks) for p in portions for lacks in _cut(p, room)]
        late = self.call.trouble if self.call.fate in _OVER else None
        for n, (portion, lacks) in enumerate(windows):
            if len(self.under_way) == two:
                late = late or self._settle()
            if late is not None:  # a put that was given up still reads what would be packed over
                portion.lose(self.pages, lacks, late)
                continue
            page_bytes = portion.lane.write.page_bytes
            at = n % two * room
            staging = self.slot.cut(at, len(lacks), page_bytes)
            with self.call.gate, portion.watch.stage("pack"):
                assert portion.selection is not None
                places = take(portion.selection.places, [lack.row for lack in lacks])
                portion.lane.write_route.pack(places, staging)
            order = self._order(portion, lacks, self.slot.start + at)
            self.under_way.append(_Window(portion, lacks, self.call.begin(order, self.slot)))
        packed([window.pending for window in self.under_way])
        while self.under_way:
            self._settle()

    def close(self) -> None:
        """Let go of the slot, and of what is under way."""
        for window in self.under_way:
            window.pending.abandon()
        self.slot.release()

    def _order(self, portion: Portion, lacks: Sequence[Lack], at: int) -> Write:
        pages, tails = self.pages, portion.lane.write.key_tails
        written = [
            WritePage(
                pages[lack.at],
                pages[lack.at - 1] if lack.at else None,
                self.start + lack.at,
                lack.chunks,
            )
            for lack in lacks
        ]
        again: list[str] = []
        if len(self.damaged):
            keys = (pages[lack.at] + tails[c] for lack in lacks for c in lack.chunks)
            again = [key for key in keys if key in self.damaged]
        return Write(portion.lane.passage, at, written, again)

    def _settle(self) -> str | None:
        """Wait for the oldest window, and count what became of it; return why it was given up."""
        portion, lacks, pending = self.under_way[0]
        with portion.watch.stage("wait"):
            answer = self.call.settle(pending)
        del self.under_way[0]
        assert isinstance(answer, WriteDone)
        if answer.error is not None:
            portion.lose(self.pages, lacks, answer.error)
            return answer.error if pending.fate in _OVER else None
        portion.stored += answer.stored
        portion.existed += answer.existed
        portion.written += answer.written
        portion.failed += (Failure(key, lacks[n].at, why) for n, key, why in answer.failed)
        portion.watch.add(answer.seconds)
        for key in answer.replaced:
            self.damaged.forget(key)
        self.call.guard.accounts.healed([*answer.replaced])
        return None


def _cut(portion: Portion, room: int) -> list[Sequence[Lack]]:
    """Cut what a portion lacks into windows that fit ``room`` bytes."""
    lacks = portion.lacks
    if not lacks:
        return []
    page_bytes = portion.lane.write.page_bytes
    size = min(room // page_bytes, max(WINDOW_BYTES // page_bytes, -(-len(lacks) // WINDOWS)))
    return [lacks[first : first + size] for first in range(0, len(lacks), size)]


def find_lacks(
    lane: Lane,
    store: StoreCall,
    pages: Sequence[str],
    rows: Sequence[int],
    damaged: RecentKeys,
    left: RecentKeys,
) -> tuple[list[Lack], int, int]:
    """Return what to store, how many objects are there already, and of how many pages.

    Replicas of the same bytes share pages out. One also writes another's page when it is missing
    and either this client was asked for it before, or a later page of the path is stored: so a
    replica that never saves costs one more save of the path, not the prefix.
    """
    plan = lane.write
    if not plan.chunks:
        return [], 0, 0
    mine = {at: lane.writes(pages[at]) for at in rows}
    asked = [at for at in rows if mine[at] or lane.writers == "striped"]
    keys = plan.keys([pages[at] for at in asked])
    sizes = store.stat(keys, wanted=True)
    wanted = [lane.format.object_sizes(chunk) for chunk in plan.chunks]
    row_of = {at: row for row, at in enumerate(rows)}
    lacks: list[Lack] = []
    last_whole = -1
    existed = count = 0
    for n, at in enumerate(asked):
        cells = range(n * len(wanted), (n + 1) * len(wanted))
        chunks = [
            c
            for c, cell in enumerate(cells)
            if not fits(sizes[cell], wanted[c]) or keys[cell] in damaged
        ]
        if not chunks:
            last_whole = at
        if mine[at]:
            count += 1
            existed += len(wanted) - len(chunks)
        if chunks:
            lacks.append(Lack(row_of[at], at, chunks))
    # A client's components share `left`, and each leaves pages to other replicas by itself.
    names = {at: f"{lane.name} {pages[at]}" for at in asked if not mine[at]}
    todo = [k for k in lacks if mine[k.at] or k.at < last_whole or names[k.at] in left]
    for name in names.values():
        left.remember(name)
    return todo, existed, count
