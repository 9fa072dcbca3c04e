"""Temporary files: names that no live writer shares and any sweep may clear. They know no keys.

A writer owns a folder ``.tmp/<16 hex>`` and holds a lock (flock) on ``.tmp/<16 hex>.lock`` while it
lives; the kernel lets go of the lock when the writer dies, however it dies. The lock comes before
the folder and goes after it, so a folder whose lock is free or gone has no writer.
"""

import errno
import fcntl
import os
import re
import secrets
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path

from unikv.backends.batch import explain
from unikv.backends.file_folders import names_in
from unikv.backends.file_names import TEMPORARY
from unikv.backends.linux import FOLDER, WAY, open_path, try_open
from unikv.errors import StoreError

_NAME = re.compile(r"([0-9a-f]{16})(\.lock)?\Z")
_LOCK_FLAGS = os.O_RDWR | os.O_NOFOLLOW  # NFS locks exclusively only what is open for writing
_CLAIMS = 100  # a sweep may snatch a lock just made, but hardly twice in a row


class TempFolder:
    """A writer's own folder, with its lock, for as long as the object lives."""

    def __init__(self, root: str) -> None:
        parent = ensure_parent(root)
        try:
            name, lock = _claim(parent)
        finally:
            os.close(parent)
        self._path = f"{root}/{TEMPORARY}/{name}".encode()
        self._numbers = count()
        weakref.finalize(self, _release, root, name, lock, os.fstat(lock), os.getpid())

    def check(self) -> None:
        """Raise `OSError` if a link leads to the folder by now, out of the root as like as not.

        It costs as much as a twentieth of a put of 64 KiB: ask once for many files.
        """
        fd = try_open(self._path, WAY)
        if fd >= 0:
            os.close(fd)
        elif fd != -errno.ENOENT:  # that whoever makes the file finds out
            raise OSError(-fd, os.strerror(-fd), os.fsdecode(self._path))

    def new_path(self) -> bytes:
        """Return a path for one more file, which is not made yet."""
        return b"%b/%d" % (self._path, next(self._numbers))


class TempFolders:
    """The temporary folder of each process that writes through one store.

    No lock guards it, since a fork could copy one that is held. Threads that race make a folder
    each, of which one stays; a folder that nobody holds any more removes itself.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folders: dict[int, TempFolder] = {}  # by process: a fork must not share names

    def mine(self) -> TempFolder:
        """Return this process's folder, made at the first call."""
        pid = os.getpid()
        found = self._folders.get(pid)
        if found is None:
            found = self._folders.setdefault(pid, TempFolder(self._root))
            for parent in [other for other in self._folders if other != pid]:
                self._folders.pop(parent, None)
        return found

    def another(self, lost: TempFolder) -> TempFolder:
        """Return a folder in place of one that is no longer there."""
        if self._folders.get(os.getpid()) is lost:
            self._folders.pop(os.getpid(), None)
        return self.mine()

    def close(self) -> None:
        """Let go of the folders; each is removed when the last put that uses it is done."""
        self._folders.clear()


def ensure_parent(root: str) -> int:
    """Open the folder of all temporary files, made if there is none; return its descriptor.

    Raises:
        StoreError: it cannot be made, is a link, lies on another file system or takes no locks.
    """
    path = f"{root}/{TEMPORARY}"
    try:
        with suppress(FileExistsError):
            Path(path).mkdir(0o700)
        fd = open_path(path.encode(), FOLDER)
        try:
            _check_parent(fd, root)
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise explain(f"{path}, want a folder that takes locks and is no link", error) from error
    return fd


def sweep(root: str) -> int:
    """Remove what dead writers left; return how many temporary files that were.

    Raises:
        OSError: something could not be removed; all else is.
    """
    parent = ensure_parent(root)
    removed, fault = 0, None
    try:
        names = {found[1] for found in map(_NAME.match, names_in(parent)) if found}
        for name in sorted(names):
            try:
                removed += _sweep_one(parent, name)
            except OSError as error:  # foreign: the dead's files are not to stay for it
                fault = fault or error
    finally:
        os.close(parent)
    if fault is not None:
        raise fault
    return removed


def _check_parent(fd: int, root: str) -> None:
    """Raise `OSError` unless files can be moved from a folder to the root, and locks be taken."""
    if os.fstat(fd).st_dev != Path(root).stat().st_dev:
        raise StoreError(f"it is a mount, and must lie on the file system of {root}")
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_UN)


def _claim(parent: int) -> tuple[str, int]:
    """Make a lock, then its folder; return their name and the descriptor that holds the lock."""
    for _ in range(_CLAIMS):
        name = secrets.token_hex(8)
        lock = os.open(f"{name}.lock", _LOCK_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)
        try:
            if _lock(parent, name, lock):
                os.mkdir(name, 0o700, dir_fd=parent)
                return name, lock
        except BaseException:
            with suppress(OSError):
                os.unlink(f"{name}.lock", dir_fd=parent)
            os.close(lock)
            raise
        os.close(lock)
    raise StoreError(f"{_CLAIMS} temporary folders in a row were swept before they were locked")


def _lock(parent: int, name: str, lock: int) -> bool:
    """Take a lock without waiting; return whether it is ours and still the one of that name."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.stat(f"{name}.lock", dir_fd=parent, follow_symlinks=False)
    except (BlockingIOError, FileNotFoundError):
        return False
    return os.path.samestat(there, os.fstat(lock))


def _sweep_one(parent: int, name: str) -> int:
    """Remove a folder and its lock if no writer holds it; return how many files it had."""
    try:
        lock = os.open(f"{name}.lock", _LOCK_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        return _empty(parent, name)
    try:
        if not _lock(parent, name, lock):
            return 0
        removed = _empty(parent, name)
        os.unlink(f"{name}.lock", dir_fd=parent)
        return removed
    finally:
        os.close(lock)


def _empty(parent: int, name: str) -> int:
    """Remove a folder with the files in it; return how many. Other sweeps may do it meanwhile."""
    removed = 0
    with suppress(FileNotFoundError):
        folder = os.open(name, FOLDER.flags, dir_fd=parent)
        try:
            for file in names_in(folder):
                with suppress(FileNotFoundError):
                    os.unlink(file, dir_fd=folder)
                    removed += 1
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
    return removed


def _release(root: str, name: str, lock: int, made: os.stat_result, pid: int) -> None:
    """Remove a folder that is no longer used, then its lock; in a forked child, only let go."""
    with suppress(OSError):
        if os.getpid() == pid:
            parent = open_path(f"{root}/{TEMPORARY}".encode(), FOLDER)
            try:
                _empty(parent, name)
                os.unlink(f"{name}.lock", dir_fd=parent)
            finally:
                os.close(parent)
    with suppress(OSError):
        # A daemon may have closed all descriptors, and the number may be another file's now.
        if os.path.samestat(os.fstat(lock), made):
            os.close(lock)
