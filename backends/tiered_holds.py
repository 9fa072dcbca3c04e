"""Holds: who changes a key of two tiers now, so that nobody else does. They know no store."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Condition


class Holds:
    """Keys that are being changed. Batches of different keys never wait for each other.

    All keys of a batch are taken at once or none, so that two batches cannot wait in a ring.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._change = Condition()

    @contextmanager
    def of(self, keys: Iterable[str]) -> Iterator[None]:
        """Hold some keys in this block, once nobody else holds one of them."""
        wanted = set(keys)
        with self._change:
            self._change.wait_for(lambda: self._held.isdisjoint(wanted))
            self._held |= wanted
        try:
            yield
        finally:
            self._release(wanted)

    @contextmanager
    def free(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """Hold those of some keys in this block that nobody holds now, without waiting."""
        with self._change:
            mine = set(keys) - self._held
            self._held |= mine
        try:
            yield list(mine)
        finally:
            self._release(mine)

    def _release(self, keys: set[str]) -> None:
        with self._change:
            self._held -= keys
            self._change.notify_all()
