"""Gate: whether a transfer may still touch its pool. It knows no pool and no ticket."""

from threading import Lock
from types import TracebackType


class Shut(Exception):  # noqa: N818 - no error: somebody cancelled
    """The gate was shut: the transfer ends here, and touches nothing more."""


class Gate:
    """Open until `shut`. What touches a pool does so between enter and exit."""

    def __init__(self) -> None:
        self._lock = Lock()
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
        """Shut it for good; waits for who is inside."""
        with self._lock:
            self.closed = True
