"""Evictor: samples cells and removes whole pages that were requested longest ago.

It keeps no index: a few candidates of the last sample, each looked at again before it goes. It
does not know how much is too much.
"""

import errno
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from unikv.backends.file_cells import CELLS, cell_of
from unikv.backends.file_evict_depth import depth_in
from unikv.backends.file_evict_ledger import Held, Ledger
from unikv.backends.file_evict_look import Page, belongs, look_at, page_of
from unikv.backends.file_evict_rank import choose
from unikv.backends.file_folders import Folders, names_in
from unikv.backends.file_names import folder_of
from unikv.backends.file_size import room_of
from unikv.backends.file_write import NO_FILE, size_of
from unikv.backends.linux import FOLDER

SAMPLE = 2048
"""Pages in a sample: more make a better choice, and a longer wait for whoever helps."""

_LEAST = 256  # pages in the sample of a small store
_CHUNK = 64  # pages that are looked at between two looks at the ledger
_STUCK = 10_000
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


class Removed(NamedTuple):
    """What a round of eviction removed."""

    bytes: int  # in whole blocks
    objects: int
    age: float  # seconds since the youngest of them was requested; 0 if there were none


class Evictor:
    """Removes pages beneath a root. One thread uses it at a time."""

    def __init__(self, root: str, ledger: Ledger, *, sample: int = SAMPLE) -> None:
        self._root = root
        self._ledger = ledger
        self._sample = sample
        self._pages = 0  # beneath the root, as far as is known
        self._candidates: list[Page] = []  # the first to go is the last
        self._next: dict[str, Page] = {}  # were nearly chosen, and belong to the next sample, too
        # Pages that cannot be removed; without it they would be each sample's oldest, and its all.
        self._stuck: set[str] = set()

    def evict(self, need: int, *, held: bool, seconds: float = math.inf) -> Removed:
        """Remove pages of ``need`` bytes together, or what can be found in one pass over all cells.

        Args:
            need: bytes, in whole blocks.
            held: whether the caller holds the ledger's lock, and looks at cells are to be noted.
            seconds: when to stop, once something was removed.
        """
        if len(self._stuck) >= _STUCK:
            self._stuck.clear()
        until = time.monotonic() + seconds
        room = objects = looks = 0
        youngest = 0
        with closing(Folders(self._root, FOLDER)) as folders:
            while room < need and not (room and time.monotonic() > until):
                if not self._candidates:
                    if looks >= CELLS:
                        break
                    looks += self._take_sample(folders, held=held)
                    continue
                page, stuck = self._candidates.pop(), len(self._stuck)
                freed, count = self._remove(folders, page)
                if count:
                    room, objects, looks = room + freed, objects + count, 0
                    youngest = max(page.requested, youngest)
                elif stuck < len(self._stuck) < _STUCK:
                    looks = 0  # the next sample is without it
        if objects:
            self._ledger.count(evicted=objects)
        age = max(time.time() - youngest / 1e9, 0.0) if objects else 0.0
        return Removed(room, objects, age)

    def survey(self, seconds: float) -> None:
        """Look at cells that nobody looked at for longest, for so long, and note what they hold.

        Only who holds the ledger's lock may.
        """
        until = time.monotonic() + seconds
        found: dict[int, Held] = {}
        for cells in self._chunks(held=True):
            self._look(cells, found)
            if time.monotonic() >= until:
                break
        self._ledger.note_looks(found)

    def _take_sample(self, folders: Folders, *, held: bool) -> int:
        """Choose new candidates; return how many cells were looked at for it."""
        sample, looks = self._next, 0
        kept: dict[int, list[str]] = {}
        for name in sample:
            kept.setdefault(_cell_of(name), []).append(name)
        found: dict[int, Held] = {}
        for cells in self._chunks(held=held):
            looks += len(cells)
            for cell, pages in zip(cells, self._look(cells, found if held else None), strict=True):
                # What others evicted since is the oldest of all that is known, and would be all
                # that is chosen, while there is a lot that could go.
                for name in kept.get(cell, ()):
                    if name not in pages:
                        del sample[name]
                sample.update((name, pages[name]) for name in pages.keys() - self._stuck)
            # All of a small store would be the best sample, and cost more than it is worth.
            if len(sample) >= min(self._sample, max(self._pages // 4, _LEAST)):
                break
        if held:
            with suppress(OSError):  # a full disk, on which all the more has to go
                self._ledger.note_looks(found)

        def depth_of(page: Page) -> int | None:
            fd = folders.open(page.name)
            return depth_in(fd, page.file) if fd >= 0 else None

        goes, stays = choose(sample.values(), depth_of, time.time_ns())
        self._candidates = list(reversed(goes))
        self._next = {page.name: page for page in stays[: len(goes)]}
        return looks

    def _chunks(self, *, held: bool) -> Iterator[Sequence[int]]:
        """Yield all cells, few at a time: at random, but if the lock is held the unknown first.

        What comes and goes while a chunk is looked at is noted wrong by half: so they are small.
        """
        cells = random.sample(range(CELLS), CELLS)
        rows = self._ledger.table().rows
        self._pages = sum(row.pages for row in rows)
        if held:
            cells.sort(key=lambda cell: rows[cell].look)
        while cells:
            pages, count = 0, 0
            while count < len(cells) and pages < _CHUNK:
                row = rows[cells[count]]
                pages += row.pages + 1 if row.look else _CHUNK  # who knows how many
                count += 1
            yield cells[:count]
            del cells[:count]

    def _look(self, cells: Sequence[int], found: dict[int, Held] | None) -> list[dict[str, Page]]:
        """Return the pages of some cells; add to ``found`` what the cells hold, unless None."""
        before = self._ledger.said_of(cells) if found is not None else []
        seen = [look_at(self._root, cell, mend=True) for cell in cells]
        if found is not None:
            after = self._ledger.said_of(cells)
            for number, cell, *said in zip(cells, seen, before, after, strict=True):
                found[number] = Held(cell.room, len(cell.pages), *said)
        return [cell.pages for cell in seen]

    def _remove(self, folders: Folders, page: Page) -> tuple[int, int]:
        """Remove all objects of a page, unless it was requested since; return bytes and objects."""
        fd = folders.open(page.name)
        if fd < 0:
            return 0, 0
        folder, cell = folder_of(page.name), _cell_of(page.name)
        room = objects = 0
        try:
            found = _objects_of(page, fd, folder)
        except OSError:
            self._ledger.count(stuck=1)
            self._stuck.add(page.name)
            return 0, 0
        for name, size in found.items():
            try:
                os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError:
                self._ledger.count(stuck=1)
                self._stuck.add(page.name)
                if not objects:  # it stays whole
                    break
                continue
            room, objects = room + size, objects + 1
            self._ledger.add(cell, -size)
        return room, objects


def _cell_of(page: str) -> int:
    """Return the cell of a page."""
    return cell_of(f"/{folder_of(page)}/".encode(), 0)


def _objects_of(page: Page, fd: int, folder: str) -> dict[str, int]:
    """Return the objects of a page and what room each takes; none if it was requested since."""
    objects: dict[str, int] = {}
    try:
        for name in names_in(fd) if "/" in folder else [page.name]:
            # A page's chunks may have come since; what only looks like one is not ours.
            if page_of(name, folder) == page.name and belongs(name, folder):
                seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if seen.st_mtime_ns > page.requested:
                    return {}
                if size_of(seen) != NO_FILE:
                    objects[name] = room_of(seen.st_size)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return {}  # somebody else removes it
    return objects
