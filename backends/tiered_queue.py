"""CarryQueue: carries objects from one store to another behind the caller's back. It knows no tier.

A thread of its own works while there is something to do and ends a moment after; the process never
waits for it. The queue holds keys, not bytes: these are read when their turn comes.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from threading import Condition, Thread

from unikv.backends.tiered_carry import Carried
from unikv.errors import StoreError

_BATCH = 32
_IDLE_S = 1.0
_TRIES = 5
_PAUSE_S = 0.2  # after a batch in which something failed that may pass; then twice as long
_LONGEST_PAUSE_S = 10.0

Carry = Callable[[Sequence[str]], list[Carried]]
"""Carries objects; tells what became of them."""


class CarryQueue:
    """Objects that wait to be carried, each once however often it is asked for.

    Args:
        carry: does the work. What it says has "changed" is carried anew.
        told: is told of each object that is done with: not of those that will be tried again.
        most: objects that may wait.
    """

    def __init__(self, carry: Carry, told: Callable[[Carried], None], most: int) -> None:
        self._carry = carry
        self._told = told
        self._most = most
        self._waiting: dict[str, None] = {}  # in order
        self._busy: Sequence[str] = ()
        self._forgotten: set[str] = set()  # of those that are being carried
        self._tries: dict[str, int] = {}
        self._thread: Thread | None = None
        self._closed = False
        self._change = Condition()

    def __len__(self) -> int:
        """Objects that wait or are being carried."""
        with self._change:
            return len(self._waiting.keys() | set(self._busy))

    def __contains__(self, key: object) -> bool:
        """Return whether an object waits or is being carried."""
        with self._change:
            return key in self._waiting or key in self._busy

    def ask(self, key: str) -> bool:
        """Have an object carried; return False where too many wait, or after `close`."""
        with self._change:
            new = key not in self._waiting and key not in self._busy
            if self._closed or (new and len(self._waiting) >= self._most):
                return False
            self._waiting[key] = None
            self._start()
            self._change.notify_all()
            return True

    def forget(self, keys: Iterable[str]) -> None:
        """Do not carry objects that were removed."""
        with self._change:
            if not (self._waiting or self._busy):
                return
            for key in keys:
                self._waiting.pop(key, None)
                self._tries.pop(key, None)
                if key in self._busy:
                    self._forgotten.add(key)

    def wanted(self, batch: Sequence[str]) -> list[str]:
        """Return what of a batch was not removed since it was taken; `carry` asks this."""
        with self._change:
            return [key for key in batch if key not in self._forgotten]

    def wait(self, seconds: float) -> bool:
        """Wait until nothing waits, at most so long; return whether that is so."""
        until = time.monotonic() + seconds
        with self._change:
            while self._waiting or self._busy:
                started = self._start()
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._change.wait(left if started else min(left, _PAUSE_S))
            return True

    def close(self, seconds: float) -> list[str]:
        """Carry nothing more; return the keys of what was left.

        It waits for what is being carried, at most so long.
        """
        with self._change:
            self._closed = True
            self._change.notify_all()
            self._change.wait_for(lambda: not self._busy, seconds)
            left = [*self._waiting, *(key for key in self._busy if key not in self._waiting)]
            self._waiting.clear()
            return left

    def _start(self) -> bool:
        """Start the thread where there is none; return whether there is one.

        Where none can be started, as at a limit of processes, what waits does so until one can be.
        """
        if self._thread is None:
            thread = Thread(target=self._work, name="unikv-tiers", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        pause = _PAUSE_S
        while (batch := self._next()) is not None:
            try:
                done = self._carry(batch)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, the thread goes on
                wrong = StoreError(f"{type(error).__name__}: {error}")
                done = [Carried(key, "failed", wrong) for key in batch]
            again = self._settle(done)
            pause = self._rest(pause) if again else _PAUSE_S

    def _next(self) -> Sequence[str] | None:
        """Return the next objects, or None when there was none for a while: the thread ends."""
        with self._change:
            if not self._change.wait_for(lambda: self._waiting or self._closed, _IDLE_S):
                self._thread = None
                return None
            if self._closed:
                return None
            self._busy = list(islice(self._waiting, _BATCH))
            for key in self._busy:
                del self._waiting[key]
            return self._busy

    def _settle(self, done: list[Carried]) -> bool:
        """Tell of what is done with, and queue the rest again; return whether there is such."""
        again = False
        for carried in done:
            if carried.key in self._forgotten and carried.fate in ("gone", "failed", "changed"):
                continue  # since it was removed, before or meanwhile
            if carried.fate == "changed":
                with self._change:
                    self._waiting[carried.key] = None
            elif self._again(carried):
                again = True
            else:
                self._told(carried)
        with self._change:
            self._busy = ()
            self._forgotten.clear()
            self._change.notify_all()
        return again

    def _again(self, carried: Carried) -> bool:
        error = carried.error
        with self._change:
            tries = self._tries.pop(carried.key, 0) + 1
            if error is None or not error.retryable or tries >= _TRIES or self._closed:
                return False
            self._tries[carried.key] = tries
            # Behind the others, whatever the bound: it was in the queue already.
            self._waiting[carried.key] = None
            return True

    def _rest(self, pause: float) -> float:
        """Give what failed time to recover; return how long the next rest is."""
        until = time.monotonic() + pause
        with self._change:
            self._change.wait_for(lambda: self._closed, until - time.monotonic())
        return min(2 * pause, _LONGEST_PAUSE_S)
