"""Crew: a bounded set of workers, each of which carries out one order at a time. No deadlines.

A worker that was given up stays parked until its order ends, and its slot with it.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Protocol, TypeAlias

from unikv.arena import Slot
from unikv.errors import StoreError
from unikv.orders import Answer, Order, refuse
from unikv.performing import Perform


class Worker(Protocol):
    """Carries out one order at a time, in whatever thread or process."""

    lost: bool
    """Whether it can take no further order: its process died, or it was interrupted."""

    def begin(self, order: Order, until: float) -> None:
        """Start an order; tries of what may pass end at ``until`` (`time.monotonic`)."""
        ...

    def interrupt(self, order: Order) -> None:
        """Take no more: the caller was interrupted as it began ``order``, which may be under way.

        `wait` answers once it is not.
        """
        ...

    def done(self) -> bool:
        """Tell whether the order has ended, without waiting."""
        ...

    def wait(self, seconds: float) -> Answer | None:
        """Return the order's answer, None if it has not ended after ``seconds``."""
        ...

    def close(self) -> None:
        """Let it go: it ends when its order does."""
        ...


class ThreadWorker:
    """A worker that is a thread of this process; the process does not wait for it to end."""

    def __init__(self, perform: Perform) -> None:
        self.lost = False
        self._job: _Job | None = None
        self._jobs: _Jobs = SimpleQueue()
        # The thread knows not its worker, which can thus be forgotten and end it.
        args = (perform, self._jobs)
        self._thread = Thread(target=_serve, args=args, name="unikv-io", daemon=True)
        self._thread.start()

    def begin(self, order: Order, until: float) -> None:
        """Start an order; see `Worker.begin`."""
        self._job = job = _Job(order, until)
        self._jobs.put(job)

    def interrupt(self, order: Order) -> None:
        """Let the thread end; see `Worker.interrupt`."""
        if self._job is None or self._job.order is not order:
            self._job = _Job(order, 0.0)
        self.lost = True
        self._jobs.put(None)

    def done(self) -> bool:
        """Tell whether the order has ended; see `Worker.done`."""
        assert self._job is not None
        return self._job.answer is not None

    def wait(self, seconds: float) -> Answer | None:
        """Return the order's answer; see `Worker.wait`."""
        job = self._job
        assert job is not None
        if job.answer is None:
            ended = self.lost and not self._thread.is_alive()  # before the last look: it may answer
            # Whoever is interrupted behind this line finds the answer the next time.
            job.ended.acquire(timeout=0.0 if ended else max(0.0, seconds))
            if ended and job.answer is None:
                return refuse(job.order, "its caller was interrupted")
        return job.answer

    def close(self) -> None:
        """Let the thread end."""
        self._jobs.put(None)


class _Job:
    """An order, and its answer once there is one; what is held until then is the lock ``ended``."""

    __slots__ = ("answer", "ended", "order", "until")

    def __init__(self, order: Order, until: float) -> None:
        self.order = order
        self.until = until
        self.answer: Answer | None = None
        self.ended = Lock()
        self.ended.acquire()


_Jobs: TypeAlias = SimpleQueue[_Job | None]


def _serve(perform: Perform, jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job.answer = perform(job.order, job.until)
        job.ended.release()
        del job  # or an idle thread would keep the last order's pages


class Crew:
    """At most ``most`` workers, hired as they are needed.

    Args:
        hire: makes a worker, within so many seconds. Raises `StoreError` where it cannot.
        most: workers at once, those given up among them.
        dismiss: called when the crew is closed and no worker is asked for any more.
    """

    def __init__(
        self, hire: Callable[[float], Worker], most: int, dismiss: Callable[[], None] = lambda: None
    ) -> None:
        self._hire = hire
        self._dismiss = dismiss
        self.most = most
        self._idle: list[Worker] = []
        self._parked: deque[tuple[Worker, Slot | None]] = deque()
        self._count = 0
        self._closed = False
        self._change = Condition()

    @property
    def stuck(self) -> int:
        """How many workers were given up and have not ended their order yet."""
        return len(self._parked)

    def take(self, seconds: float) -> Worker | None:
        """Return a worker that is free within ``seconds``, None when there is none.

        Raises:
            StoreError: a worker could not be hired.
        """
        until = monotonic() + seconds
        self.reap()
        with self._change:
            if not self._idle and self._count >= self.most and self.stuck < self.most:
                self._change.wait_for(lambda: self._idle or self._count < self.most, seconds)
            if self._closed:
                return None
            if self._idle:
                return self._idle.pop()
            if self._count >= self.most:
                return None
            self._count += 1
        try:
            return self._hire(max(0.0, until - monotonic()))
        except BaseException as error:
            with self._change:
                self._count -= 1
            if isinstance(error, RuntimeError):  # a limit of threads or processes
                raise StoreError(f"no I/O thread: {error}") from error
            raise

    def give(self, worker: Worker) -> None:
        """Take back a worker whose order has ended."""
        with self._change:
            if worker.lost or self._closed:
                worker.close()
                self._count -= 1
            else:
                self._idle.append(worker)
            self._change.notify()

    def park(self, worker: Worker, slot: Slot | None) -> None:
        """Give up waiting for a worker; the hold on ``slot`` goes when its order ends."""
        if slot is not None:
            slot.quarantine()
        with self._change:
            self._parked.append((worker, slot))
            closed = self._closed
        if closed:  # nobody comes to reap it
            worker.close()

    def reap(self) -> None:
        """Take back what was parked and has ended since."""
        with self._change:
            ended = [pair for pair in self._parked if pair[0].wait(0) is not None]
            for pair in ended:
                self._parked.remove(pair)
        for worker, slot in ended:
            if slot is not None:
                slot.release()
            self.give(worker)

    def close(self) -> None:
        """Let all workers go; those that are busy end with their orders."""
        with self._change:
            self._closed = True
            workers = [*self._idle, *(worker for worker, _ in self._parked)]
            self._idle.clear()
            self._change.notify_all()
        for worker in workers:
            worker.close()
        self._dismiss()
