"""Gate: whether a transfer may still touch its pool. It knows no pool and no ticket."""

from collections.abc import Callable, Iterator
from threading import Condition, RLock
from time import monotonic
from types import TracebackType

SLICE_S = 0.05
"""How often a transfer that waits looks whether its gate was shut."""


class Shut(Exception):  # noqa: N818 - no error: somebody cancelled
    """The gate was shut: the transfer ends here, and touches nothing more."""


class Gate:
    """Open until `shut`. What touches a pool does so between enter and exit."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may shut it in the thread that is inside
        self._callbacks: list[Callable[[], None]] = []
        self.closed = False

    def __enter__(self) -> None:
        """Pass, unless it is shut: then raise `Shut`. Whoever shuts it waits until `__exit__`."""
        self._lock.acquire()
        if self.closed:
            self._lock.release()
            raise Shut

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let whoever wants to shut it do so."""
        self._lock.release()

    def check(self) -> None:
        """Raise `Shut` if it is shut."""
        if self.closed:
            raise Shut

    def shut(self) -> None:
        """Shut it for good; waits for who is inside, but for a frame that it interrupted."""
        with self._lock:
            self.closed = True
        for callback in self._callbacks:
            callback()

    def when_shut(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called once it is shut; say so before anybody can shut it."""
        self._callbacks.append(callback)

    def slices(self, deadline: float) -> Iterator[float]:
        """Yield seconds to wait, again and again to the deadline; raise `Shut` once it is shut.

        The first is yielded even behind the deadline, as 0: whoever waits has a look at least.
        """
        while True:
            self.check()
            left = deadline - monotonic()
            yield max(0.0, min(left, SLICE_S))
            if left <= 0:
                return

    def wait(self, condition: Condition, ready: Callable[[], bool], deadline: float) -> bool:
        """Wait for a condition that is held; return whether it was ``ready`` by the deadline."""
        return any(condition.wait_for(ready, seconds) for seconds in self.slices(deadline))
