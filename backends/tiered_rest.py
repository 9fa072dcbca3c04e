"""Rest: when to leave a store alone that failed several calls in a row. It knows no store."""

from collections import Counter
from time import monotonic

_FAILURES = 3  # calls in a row
_SHORTEST_S, _LONGEST_S = 5.0, 60.0


class Rest:
    """Begins after some failed calls of one kind in a row, and lasts twice as long each time.

    No lock guards it: a count that is off by one does no harm.
    """

    def __init__(self) -> None:
        self._failures: Counter[str] = Counter()  # by verb: a store may answer one and not another
        self._length = _SHORTEST_S
        self._until = 0.0

    @property
    def on(self) -> bool:
        """Whether the store is to be left alone now."""
        return monotonic() < self._until

    def note(self, verb: str, *, failed: bool) -> None:
        """Take note of a call that failed altogether, or did not."""
        if not failed:
            self._failures.pop(verb, None)
            if not self._failures:
                self._length = _SHORTEST_S
            return
        self._failures[verb] += 1
        if self._failures[verb] >= _FAILURES:
            self._until = monotonic() + self._length
            self._length = min(2 * self._length, _LONGEST_S)
