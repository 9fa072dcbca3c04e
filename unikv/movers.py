"""Movers: a few threads that carry out tickets, so that no caller waits. They know no transfer."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeAlias

_Job: TypeAlias = Callable[[], None]


class Movers:
    """At most ``threads`` threads, started as they are needed; the process waits for none of them.

    Args:
        threads: jobs carried out at once.
        most: jobs that may wait.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._most = most
        self._idle: SimpleQueue[None] = SimpleQueue()  # a token for each thread that waits
        self._threads = threads
        self._started = 0
        self._lock = Lock()
        self._closed = False

    def submit(self, job: _Job) -> bool:
        """Have a job carried out; return False where too many wait already."""
        with self._lock:
            if self._closed or self._jobs.qsize() >= self._most:
                return False
            self._jobs.put(job)
            try:
                self._idle.get_nowait()
            except Empty:
                if self._started < self._threads:
                    self._started += 1
                    # The threads know not this object, which can thus be forgotten and end them.
                    args = (self._jobs, self._idle)
                    Thread(target=_serve, args=args, name="unikv-mover", daemon=True).start()
            return True

    def close(self) -> None:
        """Let the threads end, after the jobs that wait."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._started):
                self._jobs.put(None)


def _serve(jobs: "SimpleQueue[_Job | None]", idle: "SimpleQueue[None]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or an idle thread would keep the last job's pool
        idle.put(None)
