"""Closing: ends what a client has, once, whoever asks for it. It knows no client."""

import os
import weakref
from collections.abc import Callable
from threading import Thread, main_thread


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

    @property
    def closed(self) -> bool:
        """Whether it was called, or is being called."""
        return not self._forgotten.alive

    def close(self) -> None:
        """Let go, in this thread; a second time, and in a forked process, do nothing."""
        if self._forgotten.detach() is not None and os.getpid() == self._pid:
            self._let_go()


def _elsewhere(let_go: Callable[[], None], pid: int) -> None:
    """Let go in another thread, but as the interpreter exits.

    The collector strikes amid any step, also where this thread holds a lock that is wanted.
    """
    if os.getpid() != pid:
        return
    if main_thread().is_alive():
        Thread(target=let_go, name="unikv-closing", daemon=True).start()
    else:
        let_go()
