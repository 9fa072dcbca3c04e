"""Closing: ends what a client has, once, whoever asks for it. It knows no client."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from time import monotonic

LEAVING_S = 1.0
"""Seconds that an interpreter which exits waits for threads of ours to come to their end."""


class Closing:
    """Calls ``let_go`` once: by `close`, when the owner is forgotten, or as the interpreter exits.

    Args:
        owner: whose end it is.
        let_go: what to call. It must not refer to the owner, which would never be forgotten.
    """

    def __init__(self, owner: object, let_go: Callable[[], None]) -> None:
        self._let_go = let_go
        self._pid = os.getpid()
        self._forgotten = weakref.finalize(owner, _elsewhere, let_go, self._pid)
        self._forgotten.atexit = False
        _open.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was called, or is being called."""
        return not self._forgotten.alive

    def close(self) -> None:
        """Let go, in this thread; a second time, and in a forked process, do nothing."""
        if self._forgotten.detach() is not None and os.getpid() == self._pid:
            self._let_go()


def _elsewhere(let_go: Callable[[], None], pid: int) -> None:
    """Let go in another thread.

    The collector strikes amid any step, also where this thread holds a lock that is wanted.
    """
    if os.getpid() == pid:
        threading.Thread(target=let_go, name="unikv-closing", daemon=True).start()


_open: weakref.WeakSet[Closing] = weakref.WeakSet()  # in this process: an exit is the process's


@atexit.register
def _leave() -> None:
    """Close what is open, and wait a moment for threads that are in code of C++ or Rust.

    Before 3.14 a thread that comes back from there to an interpreter that is gone is unwound, which
    such code answers by ending the process with SIGABRT.
    """
    for closing in list(_open):
        closing.close()
    until = monotonic() + LEAVING_S
    for thread in threading.enumerate():
        if thread.name.startswith("unikv-") and thread is not threading.current_thread():
            thread.join(max(0.0, until - monotonic()))
