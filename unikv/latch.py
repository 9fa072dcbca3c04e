"""Latch: set once, and waited for. It knows not what for."""

from threading import Condition


class Latch:
    """As `threading.Event`, which a signal handler must not set while its own thread waits.

    That one has a lock that is not reentrant: the handler would wait for the frame that it
    interrupted.
    """

    def __init__(self) -> None:
        self._change = Condition()
        self._set = False

    def is_set(self) -> bool:
        """Tell whether it is set, without waiting."""
        return self._set

    def set(self) -> None:
        """Set it for good, and wake up who waits."""
        with self._change:
            self._set = True
            self._change.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most so many seconds; return whether it is."""
        with self._change:
            return self._change.wait_for(self.is_set, timeout)
