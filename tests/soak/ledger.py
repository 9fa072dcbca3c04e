"""Ledger: which pages saves reported stored, in a file that outlives its writers. No store.

A line for each half of a page (a KV head, as ranks of tp=2 store it), written after the report.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

_LINE = re.compile(rb"[0-9]{8} [01]\Z")


class Ledger:
    """The pages that were reported stored, by all workers so far."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._at = 0
        self._rest = b""
        self._known: set[tuple[int, int]] = set()

    def read(self) -> set[tuple[int, int]]:
        """Return page and half of all that was reported by now."""
        while data := os.pread(self._fd, 1 << 16, self._at):
            self._at += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if _LINE.match(line):  # else its writer was killed in the middle of it
                    page, half = line.split()
                    self._known.add((int(page), int(half)))
        return self._known

    def add(self, pages: Iterable[int], halves: Iterable[int]) -> None:
        """Note pages that a save reported; those that somebody noted already cost nothing."""
        known, halves = self.read(), list(halves)
        new = [(page, half) for page in pages for half in halves if (page, half) not in known]
        for start in range(0, len(new), 64):
            lines = "".join(f"{page:08} {half}\n" for page, half in new[start : start + 64])
            os.write(self._fd, f"\n{lines}".encode())  # behind a line that may have been cut off

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
