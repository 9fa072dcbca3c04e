"""Transfers: the match, save and load of one client, once their input is checked. No tickets.

A transfer asks the store by a `StoreCall`, stages in one slot of the arena, and touches a pool only
inside its gate.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from time import monotonic
from typing import TypeAlias
from weakref import WeakSet

from unikv.gate import Gate
from unikv.guard import Guard, Pending
from unikv.hints import announce
from unikv.in_flight import CANCELLED, Claim, InFlight
from unikv.lane import Lane, Selection
from unikv.lapse import Lapses
from unikv.larder import Held, Larder, give_back
from unikv.matching import match_bundle
from unikv.prefetching import prefetch_pages
from unikv.reading import Leg, Reader
from unikv.recent import RecentKeys
from unikv.reports import LoadReport, Match, PrefetchReport, SaveReport
from unikv.saving import Lack, Portion, Saver, find_lacks
from unikv.siblings import REFRESH_S, Asked, Siblings, choose_lanes, want_of
from unikv.store_call import StoreCall
from unikv.turns import Turn, Turns

Loader: TypeAlias = Callable[[Reader, Sequence[Leg]], LoadReport]
Packed: TypeAlias = Callable[[Sequence[Pending]], None]

ARENA_FULL = "the arena is full"
SLOTS_BUSY = "another call had not left the same slots before the deadline"
NOT_AFTER = "what the call was to come after has not happened before the deadline"
TOO_MANY = "too many calls wait already, or no thread can be started"


def _at_once() -> bool:
    """Wait for nothing."""
    return True


def _nobody(last: Sequence[Pending]) -> None:
    """Tell nobody that something is packed: more is to be."""


class Transfers:
    """Moves pages between the pools of one client and its store."""

    def __init__(
        self,
        guard: Guard,
        lanes: Sequence[Lane],
        siblings: Sequence[Siblings],
        *,
        verify: bool,
        asleep: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.guard = guard
        self.lanes = lanes
        self._siblings = siblings
        self._verify = verify
        self._asleep = asleep  # around what waits for other calls
        self.larder = Larder()
        guard.gives_way(self.larder.shed)
        self._damaged = RecentKeys()
        self._failing = Lapses()
        self._left = RecentKeys()
        self._in_flight = InFlight()
        self._gates: WeakSet[Gate] = WeakSet()  # of calls under way
        self.turns = Turns()
        self._announce_at = 0.0  # when to see to the hint records again

    def open_call(self, deadline: float, gate: Gate) -> StoreCall:
        """Return the store for one call; ``gate`` is shut when the client is closed."""
        self._gates.add(gate)
        return StoreCall(self.guard, deadline, gate)

    def close(self) -> None:
        """End all calls under way; let go of what was prefetched, of workers and arena."""
        for gate in list(self._gates):
            gate.shut()
        self.larder.clear()
        self.guard.close()

    def drop(
        self, pages: Sequence[str], selections: Sequence[Selection], reason: str
    ) -> SaveReport:
        """Return the report of a save that was not even begun."""
        portions = [Portion(lane) for lane in self.lanes]
        for portion, selection in zip(portions, selections, strict=True):
            chunks = range(len(portion.lane.write.chunks))
            lacks = [Lack(n, row, chunks) for n, row in enumerate(selection.rows)]
            portion.lose(pages, lacks, reason)
            portion.pages = sum(portion.lane.writes(pages[row]) for row in selection.rows)
        return SaveReport.total({portion.lane.name: portion.report() for portion in portions})

    def match(self, pages: Sequence[str], call: StoreCall) -> Match:
        """Return how many leading pages could be loaded."""
        accounts = self.guard.accounts
        with accounts.call("match"):
            lanes = self._choose(call, pages, [Asked(range(len(pages)))] * len(self.lanes))
            unusable = _Either(self._damaged, self._failing)
            match = match_bundle(call, [want_of(lane) for lane in lanes], pages, unusable)
        accounts.matched(match, len(pages), call.trouble)
        unsure = call.trouble is not None or match.first_missing in self._failing
        return match._replace(exact=False) if unsure else match

    def save(
        self,
        pages: Sequence[str],
        selections: Sequence[Selection],
        start: int,
        call: StoreCall,
        turn: Turn,
        *,
        comes: Callable[[], bool] = _at_once,
        packed: Packed = _nobody,
        wait: bool = True,
    ) -> SaveReport:
        """Store what the store lacks; ``wait`` for room in the arena, or drop what finds none.

        ``comes`` waits for what the save is to come after, and tells whether that happened.
        Pages that an equal save is storing just now are left to it, unless it is cancelled.
        ``packed`` is told when the pools may change, with what is still to end.
        """
        begun, accounts = monotonic(), self.guard.accounts

        def out(last: Sequence[Pending]) -> None:
            turn.leave()
            packed(last)
            accounts.source_free(monotonic() - begun)

        try:
            with accounts.call("save"):
                if late := self._late(comes, turn, call):
                    report = self.drop(pages, selections, late)
                else:
                    some = selections
                    report = self._save(pages, some, start, call, packed=out, wait=wait)
        finally:
            turn.leave()
            self.guard.count_arena()
        accounts.saved(report, call.fate, full=call.full)
        if report.ok:
            self._failing.forget(frozenset(pages))
        return report

    def _save(
        self,
        pages: Sequence[str],
        selections: Sequence[Selection],
        start: int,
        call: StoreCall,
        *,
        packed: Packed,
        wait: bool,
    ) -> SaveReport:
        portions = [
            Portion(lane, unheld=len(some.unheld))
            for lane, some in zip(self.lanes, selections, strict=True)
        ]
        todo = list(selections)
        while True:
            claim = Claim()
            pairs = list(zip(portions, todo, strict=True))
            names = [p.name(pages[row]) for p, s in pairs for row in s.rows]
            shared = self._in_flight.claim(claim, names)
            own = [
                s.keep([row for row in s.rows if p.name(pages[row]) not in shared])
                for p, s in pairs
            ]
            failed = dict.fromkeys(claim.names, CANCELLED)
            try:
                free = None if shared else packed
                self._store(pages, portions, own, start, call, wait=wait, packed=free)
                failed = {
                    p.name(pages[failure.page]): failure.reason
                    for p in portions
                    for failure in p.failed
                }
            finally:
                self._in_flight.end(claim, failed)
            lost: Mapping[str, str] = {}
            if shared:
                with self._asleep():
                    lost = self._in_flight.wait(shared, call.deadline, call.gate)
            todo = [p.settle(pages, s, shared, lost) for p, s in pairs]
            if not any(s.rows for s in todo):
                break
        if shared:
            packed([])
        return SaveReport.total({portion.lane.name: portion.report() for portion in portions})

    def load(
        self,
        pages: Sequence[str],
        selections: Sequence[Selection],
        call: StoreCall,
        turn: Turn,
        loader: Loader,
        *,
        comes: Callable[[], bool] = _at_once,
        whole: bool = False,
    ) -> LoadReport:
        """Fill the pools as ``loader`` does; with ``whole`` all of it is staged at once.

        ``comes`` waits for what the load is to come after, and tells whether that happened.
        """
        accounts = self.guard.accounts
        try:
            with accounts.call("load"):
                if late := self._late(comes, turn, call):
                    report = LoadReport(stopped=late)
                else:
                    report = self._load(pages, selections, call, loader, whole=whole)
        finally:
            turn.leave()
            self.guard.count_arena()
        accounts.loaded(report, len(pages), call.fate, full=call.full)
        self._failing.forget(frozenset(pages[: report.pages]))
        return report

    def _load(
        self,
        pages: Sequence[str],
        selections: Sequence[Selection],
        call: StoreCall,
        loader: Loader,
        *,
        whole: bool,
    ) -> LoadReport:
        asked = [Asked(some.rows, some.unheld) for some in selections]
        lanes = self._choose(call, pages, asked)
        legs = [Leg(*leg) for leg in zip(lanes, selections, strict=True)]
        held: dict[str, Held] = {}
        try:
            for lane, some in legs:
                held[lane.name] = self.larder.take(lane.shelf, pages, some.rows)
            least, most = self._staging(legs, held, whole=whole)
            slot = self.guard.take(least, most, call.deadline, call.gate) if most else None
        except BaseException:  # cancelled while it waited
            give_back(held.values())
            raise
        reader = Reader(call, slot, pages, self._verify, self._damaged, held)
        if most and slot is None:
            reader.close()
            free = self.guard.arena.size - self.guard.arena.used
            self._tell_full(call, "load", least)
            why = f"{ARENA_FULL}: a load takes {least} bytes of it, {free} are free"
            if whole and least > self.guard.arena.size:
                why += f"; want staging_bytes={least} or more, fewer pages, or stream=False"
            return LoadReport(stopped=why) if pages else LoadReport()
        try:
            report = loader(reader, legs)
        finally:
            reader.close()
        for failure in report.failed:
            if failure.kind == "error":
                self._failing.remember(failure.key)
        return report

    def prefetch(
        self, pages: Sequence[str], rows: Sequence[Sequence[int]], call: StoreCall
    ) -> PrefetchReport:
        """Bring what is stored into the larder; ``rows`` are each component's own."""
        accounts = self.guard.accounts
        with accounts.call("prefetch"):
            self.larder.shed(stale_only=True)
            lanes = self._choose(call, pages, [Asked(mine) for mine in rows])
            report = prefetch_pages(call, self.larder, lanes, pages, rows)
        accounts.prefetched(report, len(pages), call.fate)
        return report

    def _store(
        self,
        pages: Sequence[str],
        portions: Sequence[Portion],
        selections: Sequence[Selection],
        start: int,
        call: StoreCall,
        *,
        wait: bool,
        packed: Packed | None,
    ) -> None:
        """Store what is lacking of some pages, and count it in the portions."""
        call.gate.check()
        if any(portion.lane.write.chunks for portion in portions):
            self._announce(call)
        for portion, selection in zip(portions, selections, strict=True):
            with portion.watch.stage("stat"):
                portion.selection = selection
                portion.lacks, existed, count = find_lacks(
                    portion.lane, call, pages, selection.rows, self._damaged, self._left
                )
            portion.existed += existed
            portion.pages += count
        lacking = [portion for portion in portions if portion.lacks]
        if lacking:
            least = max(portion.lane.write.page_bytes for portion in lacking)
            most = sum(portion.bytes for portion in lacking)
            most = min(most, max(least, self.guard.arena.size // 2))
            slot = self.guard.take(least, most, call.deadline if wait else 0.0, call.gate)
            if slot is None:
                self._tell_full(call, "save", least)
                for portion in lacking:
                    portion.lose(pages, portion.lacks, ARENA_FULL)
            else:
                saver = Saver(call, slot, pages, start, self._damaged)
                try:
                    saver.run(lacking, packed or _nobody)
                finally:
                    saver.close()
                return
        if packed is not None:
            packed([])

    def _announce(self, call: StoreCall) -> None:
        """See to the hint records of all namespaces that are saved to, now and then."""
        if monotonic() >= self._announce_at:
            taken = [announce(call, lane.format.namespace) for lane in self.lanes]
            late = None in taken  # all slots are taken, or the store failed
            self._announce_at = monotonic() + REFRESH_S if late else inf

    def _choose(
        self, call: StoreCall, pages: Sequence[str], asked: Sequence[Asked]
    ) -> Sequence[Lane]:
        """Return for each component the lane to read it by: its own, or a sibling's."""
        if not self._siblings:
            return self.lanes
        return choose_lanes(call, self._siblings, pages, asked, self._damaged)

    def _staging(
        self, legs: Sequence[Leg], held: Mapping[str, Held], *, whole: bool
    ) -> tuple[int, int]:
        """Return the bytes that a load takes at least, and those that are of use to it."""
        least = most = 0
        for lane, selection in legs:
            rows = len(selection.rows) - len(held.get(lane.name, ()))
            window = min(lane.window_pages, rows)
            least += lane.read.page_bytes * window
            most += lane.read.page_bytes * (rows if lane.dense else window)
        return (most, most) if whole else (least, min(most, max(least, self.guard.arena.size // 2)))

    def _late(self, comes: Callable[[], bool], turn: Turn, call: StoreCall) -> str | None:
        """Wait until a call may touch its slots; return why it may not by its deadline."""
        call.gate.check()
        late = NOT_AFTER
        if comes():
            if turn.free():
                return None
            late = SLOTS_BUSY
            with self._asleep():
                if turn.wait(call.deadline, call.gate):
                    return None
        call.fate = "timed_out"
        return late

    def _tell_full(self, call: StoreCall, name: str, wanted: int) -> None:
        call.full, arena = True, self.guard.arena
        self.guard.meters.count("unikv_arena_full_total", call=name)
        self.guard.teller.tell(
            "arena_full",
            call=name,
            wanted_bytes=wanted,
            free_bytes=arena.size - arena.used,
            quarantined_bytes=arena.quarantined,
        )


class _Either:
    """What is in one of two sets."""

    def __init__(self, one: RecentKeys, other: Lapses) -> None:
        self._one = one
        self._other = other

    def __bool__(self) -> bool:
        return bool(self._one or self._other)

    def __contains__(self, key: object) -> bool:
        return key in self._one or key in self._other
