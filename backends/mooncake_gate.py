"""Gate: lets calls into a client while it is open, in the process that opened it. It calls nothing.

The library crashes the process on a call after close, and hangs in a child that was forked.
"""

import os
import threading
from collections.abc import Callable
from types import TracebackType

from unikv.errors import StoreError

CLOSE_WAIT_S = 5.0
"""How long `Gate.close` waits for calls that run; the last of them closes then."""


class Gate:
    """A context that a call stays in. ``finish`` runs once, when no call is in it any more."""

    def __init__(self, name: str, finish: Callable[[], None]) -> None:
        self._name = name
        self._finish = finish
        self._pid = os.getpid()
        self._idle = threading.Condition()
        self._inside = 0
        self._closed = False
        self._finished = False

    def __enter__(self) -> None:
        self._require_own_process()
        with self._idle:
            if self._closed:
                raise StoreError(f"{self._name} is closed")
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._idle:
            self._inside -= 1
            if self._closed and not self._inside:
                self._end()
                self._idle.notify_all()

    def require_open(self) -> None:
        """Raise `StoreError` if no call may be made any more."""
        with self:
            pass

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Let no call in any more, and finish; wait for those inside, but not for ever.

        In a forked child it only shuts: the client is the parent's.
        """
        if os.getpid() != self._pid:
            self._closed = True
            return
        with self._idle:
            self._closed = True
            if not self._inside:
                self._end()
            else:
                self._idle.wait_for(lambda: self._finished, wait_s)

    def _end(self) -> None:
        if not self._finished:
            self._finished = True
            self._finish()

    def _require_own_process(self) -> None:
        # Before the lock: the thread that held it may not be in the child.
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._name} was opened in process {self._pid}, and this is {os.getpid()}: "
                "Mooncake hangs after a fork; open the store in the new process, started by spawn"
            )
