"""Helpers: threads that share the jobs of a call with the thread that made it. They know no S3.

The interpreter does not wait for them at its end: a server that never answers holds no exit up.
"""

from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import Generic, TypeAlias, TypeVar

Job = TypeVar("Job")


class Share(Generic[Job]):
    """The jobs of one call; whoever has time takes the next."""

    __slots__ = ("_busy", "_do", "_error", "_idle", "_todo")

    def __init__(self, jobs: Iterable[Job], do: Callable[[Job], None]) -> None:
        self._todo = deque(jobs)
        self._do = do
        self._busy = 0
        self._idle = Condition(Lock())
        self._error: BaseException | None = None

    def work(self) -> None:
        """Do jobs until none is left."""
        with self._idle:
            if not self._todo:
                return
            self._busy += 1
        todo, do = self._todo, self._do
        try:
            while todo:
                try:
                    job = todo.popleft()
                except IndexError:  # another was faster
                    break
                do(job)
        except BaseException as error:  # noqa: BLE001 - raised in `join`, where the call was made
            self._todo.clear()
            self._error = error
        with self._idle:
            self._busy -= 1
            if not self._busy:
                self._idle.notify_all()

    def join(self) -> None:
        """Wait for the jobs that others took, and raise what any of them raised.

        An interrupt waits too: jobs write into memory that is the caller's again afterwards.
        """
        while True:
            try:
                with self._idle:
                    while self._busy:
                        self._idle.wait()
                break
            except KeyboardInterrupt as error:
                self._todo.clear()
                self._error = error
        if self._error is not None:
            raise self._error


_Queue: TypeAlias = "SimpleQueue[Share[object] | None]"


class Helpers:
    """Up to so many threads, started when first needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._lock = Lock()
        self._queue: _Queue = SimpleQueue()

    def __del__(self) -> None:
        self.close()

    def run(self, jobs: "list[Job]", do: Callable[[Job], None]) -> None:
        """Call ``do`` with each job, here and in the threads, in any order; return when all are.

        What a job raises is raised here, and the jobs not begun by then are dropped.
        """
        if len(jobs) <= 1:
            for job in jobs:
                do(job)
            return
        share: Share[Job] = Share(jobs, do)
        wanted = min(self._most, len(jobs) - 1)
        for _ in range(min(wanted, self._start(wanted))):
            self._queue.put(share)  # type: ignore[arg-type] # it calls do with its own jobs only
        share.work()
        share.join()

    def close(self) -> None:
        """End the threads, each when its job is done. Calls under way go on without them."""
        with self._lock:
            self._most = 0
            for _ in range(self._running):
                self._queue.put(None)
            self._running = 0

    def _start(self, wanted: int) -> int:
        """Have so many threads, or as many as the machine gives; return how many there are."""
        if self._running >= wanted:
            return self._running
        with self._lock:
            while self._running < min(wanted, self._most):
                # The thread knows the queue only, so that a store that is forgotten ends it.
                thread = Thread(target=_serve, args=(self._queue,), name="unikv-s3", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # a limit of the machine, maybe for now
                    break
                self._running += 1
            return self._running


def _serve(queue: _Queue) -> None:
    """Take part in one call after the other."""
    while (share := queue.get()) is not None:
        share.work()
        del share  # it holds the caller's buffers
