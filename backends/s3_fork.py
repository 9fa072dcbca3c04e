"""Fork guard: keeps obstore to the process that used it first. It knows no store.

A forked child that calls obstore after its parent did shares the parent's epoll descriptor: it
hangs, and hangs or kills the parent (obstore is not made for fork, says its maintainer). Both are
safe as long as the child makes no call.
"""

import os

from unikv.errors import StoreError


class ForkGuard:
    """Knows whether this process was forked from one that had used obstore by then."""

    __slots__ = ("_barred", "_used")

    def __init__(self) -> None:
        self._used = False
        self._barred = False
        os.register_at_fork(after_in_child=self._note_fork)

    @property
    def barred(self) -> bool:
        """Whether a call of obstore would hang."""
        return self._barred

    def enter(self) -> None:
        """Say that obstore is about to be called.

        Raises:
            StoreError: it must not be, in this process.
        """
        if self._barred:
            raise StoreError(
                "S3 stores cannot be used in this process: it was forked from one that had used "
                "S3 already, and the client library (obstore) would hang both; start workers by "
                "spawn or forkserver, or fork before the first use"
            )
        self._used = True

    def _note_fork(self) -> None:
        self._barred = self._barred or self._used


# One for the process, as obstore's runtime is one for the process.
GUARD = ForkGuard()
