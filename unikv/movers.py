"""Movers: a few threads that carry out tickets, so that no caller waits. They know no transfer."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from typing import TypeAlias

_Job: TypeAlias = Callable[[], None]


MOST_THREADS = 256
"""Threads in all, of which most are asleep: with more calls that wait, others wait behind them."""


class Movers:
    """At most ``threads`` threads that are awake, started as they are needed.

    The process waits for none of them. A thread that has to wait for another call says so by
    `asleep`, and one more may take its place: calls that wait never hold up those they wait for.

    Args:
        threads: jobs carried out at once, those asleep not counted.
        most: jobs that may wait for a thread.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._shop = _Shop(threads)
        self._most = most

    def submit(self, job: _Job) -> bool:
        """Have a job carried out; return False where too many wait, or nobody is there to do it."""
        shop = self._shop
        with shop.change:
            if shop.closed or len(shop.jobs) >= self._most:
                return False
            shop.jobs.append(job)
            shop.wake()
            if not shop.started:
                shop.jobs.remove(job)
                return False
        return True

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Let another thread work while this one waits in the ``with`` block."""
        shop = self._shop
        with shop.change:
            shop.allowed += 1
            shop.wake()
        try:
            yield
        finally:
            with shop.change:
                shop.allowed -= 1

    def close(self) -> None:
        """Let the threads end, after the jobs that wait."""
        with self._shop.change:
            self._shop.closed = True
            self._shop.change.notify_all()


class _Shop:
    """What the threads share. They know not `Movers`, which can thus be forgotten."""

    def __init__(self, allowed: int) -> None:
        self.change = Condition()
        self.jobs: deque[_Job] = deque()
        self.allowed = allowed
        self.started = 0
        self.idle = 0
        self.closed = False

    def wake(self) -> None:
        """Have somebody see to the jobs; call it with ``change`` held."""
        if not self.jobs:
            return
        if self.idle >= len(self.jobs):
            self.change.notify()
        elif self.started < min(self.allowed, MOST_THREADS):
            self.started += 1
            try:
                Thread(target=self.serve, name="unikv-mover", daemon=True).start()
            except RuntimeError:  # a limit of threads: whoever works already does these jobs, too
                self.started -= 1

    def serve(self) -> None:
        """Carry out jobs until there are more threads than are allowed, or no more jobs come."""
        while (job := self._next()) is not None:
            job()
            del job  # or an idle thread would keep the last job's pool

    def _next(self) -> _Job | None:
        with self.change:
            while not self.jobs or self.started > self.allowed:
                if self.closed or self.started > self.allowed:
                    self.started -= 1
                    self.wake()
                    return None
                self.idle += 1
                self.change.wait()
                self.idle -= 1
            return self.jobs.popleft()
