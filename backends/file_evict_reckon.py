"""Reckoning: usage as a few looks at the folders give it, where no ledger can be had.

It sees what all processes stored, is near enough to keep a bound by, and costs a tenth of the time
of who asks all the time. It writes nothing and evicts nothing.
"""

import random
import time

from unikv.backends.file_cells import FANNED
from unikv.backends.file_evict_look import look_at

_OBJECTS = 4096  # in a sample: an error of 1 / sqrt(objects), one part in 64
_REST = 10  # times what a look took, until the next
_LEAST_S = 0.02


class Reckoning:
    """Bytes beneath a root, for one process; one thread looks at a time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._bytes = 0
        self._good_until = 0.0

    def add(self, delta: int) -> None:
        """Count bytes that this process stored since the last look, or with a minus removed."""
        self._bytes += delta

    def read(self) -> int:
        """Return how many bytes there are, from a new look if the last one is old."""
        begun = time.monotonic()
        if begun >= self._good_until:
            self._bytes = self._look()
            now = time.monotonic()
            self._good_until = now + max(_REST * (now - begun), _LEAST_S)
        return max(self._bytes, 0)

    def _look(self) -> int:
        """Look at cells taken at random; all cells of hashes hold equal shares but for chance."""
        others = look_at(self._root, FANNED).room
        room = objects = seen = 0
        for cell in random.sample(range(FANNED), FANNED):
            found = look_at(self._root, cell)
            room, objects, seen = room + found.room, objects + found.objects, seen + 1
            if objects >= _OBJECTS:
                break
        return others + room * FANNED // seen
