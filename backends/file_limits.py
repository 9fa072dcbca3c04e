"""Limits: how much a root may hold, and what that means at a given usage. They remove nothing."""

import os
from typing import NamedTuple

from unikv.backends.file_cells import CELLS
from unikv.backends.file_evict_ledger import Reading

ENOUGH = 40_000
"""Pages to have seen before usage is believed: an error of 1 / sqrt(pages), half a percent."""


class Limits(NamedTuple):
    """Bounds of a root as one process has them; at least one is not None."""

    max_bytes: int | None = None
    min_free: int | None = None

    @property
    def share(self) -> int:
        """Bytes that may be stored before usage is looked at again, by all processes together."""
        return min(bound for bound in self if bound is not None) // 200

    def believes(self, reading: Reading) -> bool:
        """Return whether enough is known to evict on the word of the ledger."""
        known = reading.table
        return self.max_bytes is None or known.known == CELLS or known.pages >= ENOUGH

    def need(self, reading: Reading, lack: int) -> int:
        """Return how many bytes are to go: down to 97 % of the bound once usage is above 98 %.

        ``lack`` is what `lack` says, or what it will say in a moment.
        """
        need = 0
        if self.max_bytes is not None and reading.bytes > self.max_bytes * 98 // 100:
            need = reading.bytes - self.max_bytes * 97 // 100
        return max(need, lack + self._spare) if lack > 0 else need

    def nears(self, root: str, reading: Reading) -> bool:
        """Return whether there will soon be a need."""
        if self.max_bytes is not None and reading.bytes > self.max_bytes * 95 // 100:
            return True
        return self.lack(root) > -self._spare

    def exceeds(self, root: str, reading: Reading, room: int = 0) -> bool:
        """Return whether writers are to help: what they store until they look may be too much.

        Then eviction, which began a good deal below, has not kept up with them. ``room`` is what
        one of them stores next.
        """
        more = max(room, self.share)
        over = self.max_bytes is not None and reading.bytes + more > self.max_bytes
        return over or self.lack(root) > self._spare

    def lack(self, root: str) -> int:
        """Return how many bytes of the free space are missing; below 0 if there is more."""
        if self.min_free is None:
            return -(2**62)
        disk = os.statvfs(root)
        return self.min_free - disk.f_bavail * disk.f_frsize

    @property
    def _spare(self) -> int:
        return (self.min_free or 0) // 16
