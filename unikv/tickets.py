"""Tickets: calls under way, to be asked, awaited and cancelled. They know no store and no pool."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from threading import TIMEOUT_MAX, Condition, RLock
from time import monotonic
from typing import Generic, TypeVar

from unikv.arguments import real_number, whole_number
from unikv.errors import PoolError, SpecError, StoreError
from unikv.gate import Gate, Shut
from unikv.guard import Pending
from unikv.latch import Latch
from unikv.reports import LoadReport, PrefetchReport, SaveReport

_Report = TypeVar("_Report")


class Ticket(Generic[_Report]):
    """One call under way, carried out on another thread."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.begun = monotonic()
        self._ended = Latch()
        self._first = RLock()
        self._report: _Report | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Tell whether all is over, however it ended, without waiting."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> _Report:
        """Wait for the report.

        Raises:
            SpecError: a ``timeout`` that is no number.
            TimeoutError: it is not there after ``timeout`` seconds; the call goes on.
            concurrent.futures.CancelledError: the call was cancelled.
        """
        if not self._ended.wait(_seconds(timeout)):
            raise TimeoutError(f"not done after {timeout} s: ask again, or cancel")
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def cancel(self) -> None:
        """End the call as soon as can be: the pool is not touched after this returns.

        It waits for no I/O, only for a copy from or to the pool that is being made. What was
        loaded or stored by then stays; a call that is done already stays done.
        """
        self.gate.shut()
        self._finish(None, CancelledError("the call was cancelled"))

    def carry_out(self, work: Callable[[], _Report]) -> None:
        """Run the work and keep what comes of it; the first end of a ticket counts."""
        try:
            report = work()
        except Shut:
            self._finish(None, CancelledError("the call was cancelled"))
        except BaseException as error:  # noqa: BLE001 - raised anew where the result is asked for
            self._finish(None, error)
        else:
            self._finish(report, None)

    def _finish(self, report: _Report | None, error: BaseException | None) -> None:
        with self._first:
            if not self._ended.is_set():
                self._report, self._error = report, error
                self._ended.set()


class SaveTicket(Ticket[SaveReport]):
    """A save under way: first the pool may change (`source_free`), later all is stored."""

    def __init__(self) -> None:
        super().__init__()
        self._free = Latch()
        self._last: Sequence[Pending] | None = None

    def done(self) -> bool:
        """Tell whether all is stored, or given up, without waiting and without a thread switch."""
        last = self._last
        return super().done() or (last is not None and all(one.done() for one in last))

    def source_free(self) -> bool:
        """Tell whether the pages' slots may be reused: all that is to be stored of them is out."""
        return self._free.is_set() or self._ended.is_set()

    def wait_source_free(self, timeout: float | None = None) -> bool:
        """Wait until `source_free`; return whether it is, after ``timeout`` seconds at most.

        Raises:
            SpecError: a ``timeout`` that is no number.
        """
        return self._free.wait(_seconds(timeout)) or self.source_free()

    def packed(self, last: Sequence[Pending]) -> None:
        """Note that the pool is no longer read, and which I/O is still to end."""
        self._last = list(last) or None
        self._free.set()

    def _finish(self, report: SaveReport | None, error: BaseException | None) -> None:
        super()._finish(report, error)
        self._free.set()


class LoadTicket(Ticket[LoadReport]):
    """A load under way. With ``stream=True`` layers become usable one after the other."""

    def __init__(self, layers: int, *, stream: bool) -> None:
        super().__init__()
        self.stream = stream
        self._layers = layers
        self._usable = 0  # layers
        self._change = Condition()

    def wait_layer(self, layer: int, stream: object = None, timeout: float | None = None) -> None:
        """Wait until a layer of the first component's pool holds all pages of the load.

        Without ``stream=True`` that is when the load ends, with however many pages its report says.

        Args:
            layer: index into the pool's layers, 0 for this rank's first.
            stream: the CUDA stream that is to wait, for pools on a GPU; None on the CPU.
            timeout: seconds; None waits as long as the load takes.

        Raises:
            PoolError: no such layer, or a stream for a pool that is on no GPU.
            SpecError: a ``timeout`` that is no number.
            StoreError: the streamed load failed: no page of it is to be used.
            TimeoutError: the layer is not there in time.
            concurrent.futures.CancelledError: the load was cancelled.
        """
        number, seconds = whole_number(layer), _seconds(timeout)
        if number is None or not 0 <= number < self._layers:
            raise PoolError(
                f"layer {layer!r:.80}: the pool has {self._layers}, want a number counted from 0"
            )
        if stream is not None:
            raise PoolError(
                "a stream to wait in: want None, the pool is on the CPU and the caller waits"
            )
        with self._change:
            ready = self._change.wait_for(
                lambda: self._usable > number or self._ended.is_set(), seconds
            )
        if not ready:
            raise TimeoutError(f"layer {layer} is not there after {timeout} s")
        if self._ended.is_set():
            report = self.result()
            if self.stream and report.stopped is not None:
                raise StoreError(f"no page was loaded: {report.stopped}")

    def layers_ready(self, usable: int) -> None:
        """Note that the first ``usable`` layers hold all pages."""
        with self._change:
            self._usable = usable
            self._change.notify_all()

    def _finish(self, report: LoadReport | None, error: BaseException | None) -> None:
        super()._finish(report, error)
        with self._change:
            self._change.notify_all()


class PrefetchTicket(Ticket[PrefetchReport]):
    """A prefetch under way; its pages wait in the arena for a load."""


def _seconds(timeout: object) -> float | None:
    """Return how long to wait, None for as long as it takes; at most what a lock can wait."""
    if timeout is None:
        return None
    seconds = real_number(timeout)
    if seconds is None:
        raise SpecError(f"timeout={timeout!r:.80}: want seconds, or None to wait as long as needed")
    return min(seconds, TIMEOUT_MAX)
