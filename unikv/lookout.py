"""Lookout: asks a silent store for something small, now and then. It knows no call."""

from threading import RLock
from time import monotonic

from unikv.breaker import Breaker
from unikv.crew import Crew, Worker
from unikv.errors import StoreError
from unikv.orders import Answer, Peek

LOOK_S = 0.05
"""How long a call waits for a silent store to answer again, at most once a look."""

PATIENCE_S = 5.0
"""How long a look may stay without an answer before another one is sent."""

LOOK_KEY = "unikv_look"
"""Key that a look asks for: no object has it, and any answer will do."""


class Lookout:
    """Sends looks to a store whose breaker is open, one at a time."""

    def __init__(self, crew: Crew, breaker: Breaker) -> None:
        self._crew = crew
        self._breaker = breaker
        self._busy = RLock()  # a signal handler may close it in the thread that waits
        self._worker: Worker | None = None  # under way
        self._begun = 0.0

    def answers(self, now: float) -> bool:
        """Return whether the store has answered a look; other callers need not wait for one."""
        if not self._busy.acquire(blocking=False):
            return False
        try:
            if self._worker is None:
                self._send(now)
            return self._worker is not None and self._wait(self._worker, now)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Give up the look that is under way, if any."""
        with self._busy:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._crew.park(worker, None)

    def _send(self, now: float) -> None:
        if not self._breaker.wants_look(now):
            return
        self._breaker.looked(now)
        try:
            worker = self._crew.take(LOOK_S)
        except StoreError:  # the I/O process cannot be started: no answer, either
            return
        if worker is not None:
            worker.begin(Peek([(LOOK_KEY, 0, 1)]), now)
            self._worker, self._begun = worker, now

    def _wait(self, worker: Worker, now: float) -> bool:
        answer = worker.wait(max(0.0, self._begun + LOOK_S - monotonic()))
        if answer is None and now - self._begun < PATIENCE_S:
            return False
        self._worker = None
        if answer is None:
            self._crew.park(worker, None)
            return False
        self._crew.give(worker)
        return not _failed(answer)


def _failed(answer: Answer) -> bool:
    return answer.outage or answer.error is not None
