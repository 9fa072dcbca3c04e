"""Lapses: texts that are remembered for some seconds. It knows not what they name."""

from collections.abc import Collection
from threading import Lock
from time import monotonic

LAPSE_S = 5.0
CAPACITY = 65_536


class Lapses:
    """A set whose members leave it by themselves after `LAPSE_S` seconds.

    A client keeps keys here that the store failed to read, so that a scheduler which asks again is
    told of a miss and recomputes, instead of trying for ever what fails every time.
    """

    def __init__(self, seconds: float = LAPSE_S) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}
        self._lock = Lock()

    def __contains__(self, key: object) -> bool:
        until = self._until.get(str(key))
        return until is not None and monotonic() < until

    def __len__(self) -> int:
        return len(self._until)

    def forget(self, pages: Collection[str]) -> None:
        """Drop the keys that begin with one of ``pages``: they were read or stored since."""
        if self._until:
            with self._lock:
                for key in [key for key in self._until if key[:64] in pages]:
                    del self._until[key]

    def remember(self, key: str) -> None:
        """Add ``key``; what has left is dropped meanwhile, and the oldest of too many."""
        now = monotonic()
        with self._lock:
            self._until.pop(key, None)
            self._until[key] = now + self._seconds
            while self._until:
                oldest = next(iter(self._until))
                if self._until[oldest] > now and len(self._until) <= CAPACITY:
                    break
                del self._until[oldest]
