"""Looking: what lies in one cell of a root, page by page. It opens no file and removes none."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from unikv.backends.file_cells import FANNED, cell_name
from unikv.backends.file_folders import names_in
from unikv.backends.file_names import PAGE_DIGITS, folder_of, is_folder
from unikv.backends.file_size import room_of
from unikv.backends.linux import FOLDER, open_in, try_open
from unikv.errors import KeyFormatError

KEPT = "ns_"  # hints are never evicted
_AHEAD_NS = 3600 * 10**9


class Page(NamedTuple):
    """Objects that are evicted together: the chunks of one page, or an object of another key."""

    name: str  # the page's hash, or the whole key
    requested: int  # ns since the epoch: when the last of them was put or read
    file: str  # the name of one of them


@dataclass(slots=True)
class Cell:
    """What a look at one cell found."""

    room: int = 0  # bytes, in whole blocks
    bytes: int = 0
    objects: int = 0
    foreign: int = 0  # files and folders that are no objects and none of this store's folders
    unread: int = 0  # folders that could not be read
    pages: dict[str, Page] = field(default_factory=dict)  # by name; hints left out


def look_at(root: str, number: int, *, mend: bool = False) -> Cell:
    """Look at every file of a cell.

    With ``mend``, one that was requested in the future gets the time of now: a clock was wrong
    once, and it is to age like the others.
    """
    found, name = Cell(), cell_name(number)
    fd = try_open(f"{root}/{name}".encode(), FOLDER)
    if fd < 0:
        return found
    try:
        if number == FANNED:
            _look_into(fd, name, found, mend=mend)
            return found
        for inner in names_in(fd):
            try:
                leaf = open_in(fd, inner, FOLDER) if is_folder(inner) else -1
            except OSError:
                leaf = -1
            if leaf < 0:
                found.foreign += 1
                continue
            try:
                _look_into(leaf, f"{name}/{inner}", found, mend=mend)
            finally:
                os.close(leaf)
    except OSError:
        found.unread += 1
    finally:
        os.close(fd)
    return found


def page_of(key: str, folder: str) -> str:
    """Return the page that an object goes with; ``folder`` is the one that it lies in."""
    return key[:PAGE_DIGITS] if "/" in folder else key


def belongs(name: str, folder: str) -> bool:
    """Return whether a file is an object that lies where it should."""
    try:
        return folder_of(name) == folder
    except KeyFormatError:
        return False


def _look_into(fd: int, folder: str, found: Cell, *, mend: bool) -> None:
    """Look at every file of a folder that is open."""
    pages, ahead = found.pages, time.time_ns() + _AHEAD_NS
    try:
        with os.scandir(fd) as files:
            for file in files:
                name = file.name
                if not belongs(name, folder) or not file.is_file(follow_symlinks=False):
                    found.foreign += 1
                    continue
                try:
                    seen = file.stat(follow_symlinks=False)
                except FileNotFoundError:  # gone meanwhile
                    continue
                found.objects += 1
                found.bytes += seen.st_size
                found.room += room_of(seen.st_size)
                requested = seen.st_mtime_ns
                if mend and requested > ahead:
                    with suppress(OSError):
                        os.utime(name, dir_fd=fd, follow_symlinks=False)
                if name.startswith(KEPT):
                    continue
                page = page_of(name, folder)
                known = pages.get(page)
                if known is None or known.requested < requested:
                    pages[page] = Page(page, requested, name)
    except OSError:  # one bad folder must not keep the others from being seen
        found.unread += 1
