"""Claims: which limits somebody keeps a root within, by locks that live as long as who does.

A file ``.usage/limits-<max_bytes>-<min_free>`` for each; 0 stands for no bound. They evict nothing.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from unikv.backends.file_evict_place import USAGE, open_file, opened
from unikv.backends.file_folders import names_in
from unikv.backends.file_limits import Limits

_NAME = re.compile(r"limits-([0-9]{1,19})-([0-9]{1,19})\Z")
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def claim(root: str, limits: Limits) -> int | None:
    """Return a descriptor that holds the one lock of these limits; None if somebody keeps them.

    Raises:
        OSError: it cannot be made: the root is gone, or its disk fails.
    """
    with opened(root) as folder:
        fd = open_file(folder, _name(limits))
    return fd if _lock(fd) else None


def holds(root: str, limits: Limits, lock: int) -> bool:
    """Return whether a claim still is the one that others see: somebody may clear the folder."""
    try:
        there = Path(root, USAGE, _name(limits)).lstat()
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(lock))


def release(lock: int) -> None:
    """Give a claim up."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked may hold the file open, too
    os.close(lock)


def strictest(root: str, own: Limits) -> Limits:
    """Return one's own limits, narrowed to what others keep the root within now.

    Raises:
        OSError: the root is gone, or its disk fails.
    """
    max_bytes, min_free = own
    with opened(root) as folder:
        for match in filter(None, map(_NAME.match, names_in(folder))):
            other = Limits(*(int(number) or None for number in match.groups()))
            if other == own or not _is_kept(folder, match[0]):
                continue
            max_bytes = min(filter(None, (max_bytes, other.max_bytes)), default=None)
            min_free = max(filter(None, (min_free, other.min_free)), default=None)
    return Limits(max_bytes, min_free)


def _name(limits: Limits) -> str:
    return f"limits-{limits.max_bytes or 0}-{limits.min_free or 0}"


def _is_kept(folder: int, name: str) -> bool:
    with suppress(OSError):
        fd = os.open(name, _FLAGS, dir_fd=folder)
        if not _lock(fd):
            return True
        release(fd)
    return False


def _lock(fd: int) -> bool:
    """Take a lock without waiting; close the file if somebody else holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return False
    return True
