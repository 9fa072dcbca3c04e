"""Usage: counts all that lies beneath a root, folder by folder. It changes nothing."""

import os
from typing import NamedTuple

from unikv.backends.file_cells import CELLS, cell_name
from unikv.backends.file_evict_look import look_at
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_folders import names_in
from unikv.backends.file_names import TEMPORARY
from unikv.backends.linux import FOLDER, try_open


class Usage(NamedTuple):
    """What lies beneath a root, counted; and what was done for its bounds."""

    objects: int
    bytes: int  # of the objects
    room: int  # the same in whole blocks of 4 KiB, which is what ``max_bytes`` bounds
    foreign: int  # files and folders that are not the store's; nothing touches them
    unread: int  # folders that could not be read
    temporary: int  # files that writers are at, or left when they died
    estimate: int | None  # ``room`` as eviction reckons it; None with no bound, or no ledger
    evicted: int = 0  # objects so far, by all processes
    stuck: int = 0  # how often eviction met a file that it could not remove
    fault: str | None = None  # why no process evicts, where this one should have started it


def count(root: str) -> Usage:
    """Count what lies beneath a root."""
    objects = size = room = unread = 0
    known = {cell_name(cell) for cell in range(CELLS)} | {TEMPORARY, USAGE}
    foreign = sum(name not in known for name in _names(root))
    for cell in range(CELLS):
        found = look_at(root, cell)
        objects += found.objects
        size += found.bytes
        room += found.room
        foreign += found.foreign
        unread += found.unread
    temporary = sum(
        len(_names(f"{root}/{TEMPORARY}/{name}")) for name in _names(f"{root}/{TEMPORARY}")
    )
    return Usage(objects, size, room, foreign, unread, temporary, None)


def _names(folder: str) -> list[str]:
    """Return the names in a folder, none if there is no such folder."""
    fd = try_open(folder.encode(), FOLDER)
    if fd < 0:
        return []
    try:
        return names_in(fd)
    finally:
        os.close(fd)
