"""Breaker: whether a store answers, from what became of orders. It does no I/O and has no clock.

It opens when an order ran into its deadline while nothing else was answered, or when orders failed
as a whole several times in a row; any answer closes it.
"""

from threading import Lock

MOST_OUTAGES = 3
"""Orders in a row that may fail as a whole before the breaker opens."""

FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 5.0
"""Seconds between two looks whether the store answers again: doubled from the first to the last."""


class Breaker:
    """Closed while the store answers. All times are `time.monotonic` seconds of its callers."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._answered_at = 0.0
        self._outages = 0
        self._pause_s = FIRST_PAUSE_S
        self._look_at = 0.0
        self._opened_at = 0.0
        self.reason: str | None = None
        """Why it is open; None while it is closed."""

    def answered(self, now: float) -> float | None:
        """Note an answer; return for how long the breaker was open if this closes it."""
        with self._lock:
            self._answered_at, self._outages, self._pause_s = now, 0, FIRST_PAUSE_S
            if self.reason is None:
                return None
            self.reason = None
            return now - self._opened_at

    def failed(self, now: float, reason: str) -> bool:
        """Note an order that failed as a whole; return whether this opens the breaker."""
        with self._lock:
            self._outages += 1
            return self._outages >= MOST_OUTAGES and self._open(now, reason)

    def timed_out(self, begun: float, now: float, reason: str) -> bool:
        """Note an order without an answer since ``begun``; return whether this opens it."""
        with self._lock:
            return self._answered_at < begun and self._open(now, reason)

    def wants_look(self, now: float) -> bool:
        """Tell whether it is open and time to ask the store for something small."""
        return self.reason is not None and now >= self._look_at

    def looked(self, now: float) -> None:
        """Note that somebody looks, or looked in vain: the next look comes later."""
        with self._lock:
            self._look_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, LAST_PAUSE_S)

    def _open(self, now: float, reason: str) -> bool:
        first = self.reason is None
        self.reason = reason
        if first:
            self._opened_at = self._look_at = now
        return first
