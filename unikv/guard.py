"""Guard: a store as a client calls it, by orders with deadlines, behind a breaker. It knows no KV.

An order that runs into its deadline fails there and then; its worker and its slot stay parked until
the I/O has ended, however late. A store that does not answer costs one deadline, then nothing until
it answers again.
"""

import os
from collections.abc import Callable
from time import monotonic

from unikv.accounts import Accounts, Fate
from unikv.arena import Arena, Slot
from unikv.breaker import FIRST_PAUSE_S, Breaker
from unikv.crew import Crew, Worker
from unikv.errors import StoreError
from unikv.events import Teller
from unikv.gate import Gate
from unikv.lookout import Lookout
from unikv.meters import Meters
from unikv.orders import Answer, Order, Peek, Post, Read, Stat, Write, cause_of, refuse
from unikv.store import Store

MOST_LOST = 3
"""New workers that an order may lose, beside all that died while they were idle."""

_VERBS = {Read: "get", Peek: "get", Write: "put", Post: "put", Stat: "stat"}


class Guard:
    """What all calls of one client share: workers, arena, breaker, meters.

    Args:
        crew: who carries out orders.
        arena: the memory that orders name.
        store: what orders are carried out on; asked only how events name it, and whether it has
            ``costly_stat``: each size is a request of its own.
        meters: where orders are counted.
        teller: who is told what an operator should hear.
    """

    def __init__(
        self, crew: Crew, arena: Arena, store: Store, meters: Meters, teller: Teller
    ) -> None:
        self.crew = crew
        self.arena = arena
        self.meters = meters
        self.teller = teller
        self.accounts = Accounts(meters, teller)
        self._shown = repr(store)
        self._pid = os.getpid()
        self.costly_stat = bool(getattr(store, "costly_stat", False))
        self._breaker = Breaker()
        self._lookout = Lookout(crew, self._breaker)
        self._give_way: Callable[[], bool] = bool  # which is False
        meters.set("unikv_arena_bytes", arena.size)
        meters.before_read(self._count_again)

    def take(self, least: int, most: int, deadline: float, gate: Gate) -> Slot | None:
        """Return a slot of the arena, None if there is none by ``deadline``.

        There is no waiting where what is quarantined leaves too little.

        Raises:
            Shut: the gate was shut while waiting.
        """
        slot: Slot | None = None
        for seconds in gate.slices(deadline):
            self.crew.reap()
            slot = self.arena.take(least, most)
            while slot is None and self._give_way():
                slot = self.arena.take(least, most)
            if slot is not None or self.arena.size - self.arena.quarantined < least:
                break
            self.arena.wait(seconds)  # in slices, as what is parked ends without a word
        self.count_arena()
        return slot

    def gives_way(self, give_way: Callable[[], bool]) -> None:
        """Have ``give_way`` called where there is no room; it returns whether it made some."""
        self._give_way = give_way

    def begin(self, order: Order, deadline: float, slot: Slot | None = None) -> "Pending":
        """Start an order on ``slot``; it is refused where the store is known not to answer."""
        now, verb = monotonic(), _VERBS[type(order)]
        worker: Worker | None = None
        fate: Fate = "timed_out"
        reason = "the deadline has passed"
        if now < deadline:
            fate, reason = "breaker_open", self._silence(now)
            if not reason:
                fate, reason = "error", f"all {self.crew.most} I/O threads are busy"
                try:
                    worker = self._put_to_work(order, deadline, slot)
                except StoreError as error:
                    reason = str(error)
        if worker is None:
            self.meters.count("unikv_io_orders_total", verb=verb, outcome="refused")
            return Pending(self, order, deadline, answer=refuse(order, reason), fate=fate)
        return Pending(self, order, deadline, worker=worker, slot=slot)

    def _put_to_work(self, order: Order, deadline: float, slot: Slot | None) -> Worker | None:
        """Have a worker begin an order, and hold its slot; None where all are busy.

        Raises:
            StoreError: a worker could not be hired.
        """
        for _ in range(self.crew.most + MOST_LOST):
            worker = self.crew.take(deadline - monotonic())
            if worker is None:
                return None
            if slot is not None:
                slot.hold()
            try:
                worker.begin(order, deadline)
            except BaseException:  # the caller was interrupted: the order may be under way
                worker.interrupt(order)
                self.crew.park(worker, slot)
                raise
            if not worker.lost:
                return worker
            if slot is not None:
                slot.release()
            self.crew.give(worker)  # its process had died while it was idle: it began nothing
        raise StoreError(f"{MOST_LOST} new I/O workers were lost at once")

    def ended(self, order: Order, answer: Answer, begun: float, *, lost: bool) -> None:
        """Note what became of an order that was answered, or ``lost`` with its process."""
        now, verb = monotonic(), _VERBS[type(order)]
        self.meters.observe("unikv_io_order_seconds", now - begun, verb=verb)
        if answer.retries:
            self.meters.count("unikv_io_retries_total", answer.retries, verb=verb)
        outcome = "failed" if answer.error or answer.outage else "ok"
        self.meters.count("unikv_io_orders_total", verb=verb, outcome=outcome)
        if lost:  # that says nothing of the store
            return
        if not answer.outage:
            self._close(now)
        elif self._breaker.failed(now, cause_of(answer) or "every item of a batch failed"):
            self._tell_open()

    def timed_out(self, order: Order, begun: float, deadline: float) -> str:
        """Note an order without an answer; return a sentence on it."""
        now, verb = monotonic(), _VERBS[type(order)]
        self.meters.count("unikv_io_orders_total", verb=verb, outcome="timed_out")
        reason = f"no answer to {verb} within {max(0.0, deadline - begun):.3g} s"
        self.count_arena()
        self.teller.tell(
            "timed_out",
            call=verb,
            deadline_s=round(max(0.0, deadline - begun), 3),
            quarantined_bytes=self.arena.quarantined,
        )
        if self._breaker.timed_out(begun, now, reason):
            self._tell_open()
        return reason

    @property
    def silent(self) -> str | None:
        """Why the store is taken to be dead, None when it is not."""
        return self._breaker.reason

    def close(self) -> None:
        """Let go of all workers and of the arena."""
        self.crew.close()
        self._lookout.close()
        self.arena.close()

    def _silence(self, now: float) -> str:
        """Return why the store is not asked; an empty text when it is."""
        if (reason := self._breaker.reason) is not None:
            if not self._lookout.answers(now):
                return f"the store does not answer ({reason})"
            self._close(monotonic())
        return ""

    def _close(self, now: float) -> None:
        if (open_s := self._breaker.answered(now)) is not None:
            self.meters.set("unikv_breaker_state", 0)
            self.teller.tell("breaker_closed", store=self._shown, open_s=round(open_s, 3))

    def _tell_open(self) -> None:
        self.meters.count("unikv_breaker_opens_total")
        self.meters.set("unikv_breaker_state", 2)
        reason = self._breaker.reason or ""
        self.teller.tell("breaker_opened", store=self._shown, reason=reason, retry_s=FIRST_PAUSE_S)

    def _count_again(self) -> None:
        """Note what has ended since the last call, where this process has the workers."""
        if os.getpid() == self._pid:
            self.crew.reap()
            self.count_arena()

    def count_arena(self) -> None:
        """Note how much of the arena is in use."""
        self.meters.set("unikv_arena_used_bytes", self.arena.used)
        self.meters.set("unikv_arena_quarantined_bytes", self.arena.quarantined)
        self.meters.set("unikv_io_stuck_threads", self.crew.stuck)


class Pending:
    """An order under way. Ask for its `result`, or `abandon` it: else its worker is lost."""

    def __init__(
        self,
        guard: Guard,
        order: Order,
        deadline: float,
        *,
        worker: Worker | None = None,
        slot: Slot | None = None,
        answer: Answer | None = None,
        fate: Fate = "error",
    ) -> None:
        self.fate: Fate = fate
        """How the order failed, if its answer has an error."""
        self._guard = guard
        self._order = order
        self._deadline = deadline
        self._worker = worker
        self._slot = slot
        self._answer = answer
        self._begun = monotonic()

    def done(self) -> bool:
        """Tell whether the result is there, without waiting."""
        return self._worker is None or self._worker.done()

    def result(self, gate: Gate | None = None) -> Answer:
        """Wait for the answer, to the deadline at most; later it is a failed one.

        Raises:
            Shut: ``gate`` was shut meanwhile; the order is to be abandoned.
        """
        if self._answer is None:
            assert self._worker is not None
            for seconds in (gate or Gate()).slices(self._deadline):
                if (answer := self._worker.wait(seconds)) is not None:
                    self._answer = answer
                    break
            if self._answer is None:
                self.abandon()
                reason = self._guard.timed_out(self._order, self._begun, self._deadline)
                self._answer, self.fate = refuse(self._order, reason), "timed_out"
            else:
                worker, self._worker = self._worker, None
                if self._slot is not None:
                    self._slot.release()
                self._guard.crew.give(worker)
                self._guard.ended(self._order, self._answer, self._begun, lost=worker.lost)
        return self._answer

    def abandon(self) -> None:
        """Wait no longer; the slot stays held until the I/O has ended."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self._guard.crew.park(worker, self._slot)
