"""Place: the folder `.usage` of a root, and the way to files in it. It knows nothing of usage.

Whoever may write to the root may remove it, or put other things into it and in its place. It is
made again where it lacks; what has the name of a file in it that is wanted is moved aside, and
never followed, opened or removed; what stands in the place of the folder itself stays there.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from unikv.backends.linux import FOLDER, WAY, open_path, try_open

USAGE = ".usage"  # no key begins with a dot


@contextmanager
def opened(root: str, *, make: bool = True) -> Iterator[int]:
    """Open the folder through no link, and make it again if somebody removed it.

    Raises:
        OSError: there is something else in its place, or no root.
    """
    path = f"{root}/{USAGE}".encode()
    fd = try_open(path, FOLDER)
    if fd == -errno.ENOENT and make:
        _make(root)
        fd = open_path(path, FOLDER)
    elif fd < 0:
        raise OSError(-fd, os.strerror(-fd), os.fsdecode(path))
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(folder: int, name: str) -> int:
    """Open a file in the folder to write, made if there is none; what else is there makes way.

    Raises:
        OSError: it cannot be made.
    """
    make_way(folder, name)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)


def make_way(folder: int, name: str) -> None:
    """Move aside what has a file's name in the folder and is none.

    Raises:
        OSError: it cannot be moved.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            aside = f"odd-{secrets.token_hex(8)}"
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)


def write_file(folder: int, name: str, data: bytes) -> None:
    """Write a file in the folder, whole or not at all. Only who holds the ledger's lock may.

    Raises:
        OSError: it cannot be written.
    """
    # Named like a record that was not finished: where its writer dies it is removed like one.
    new = f"{secrets.token_hex(8)}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600, dir_fd=folder)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        make_way(folder, name)
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=folder)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write the bytes of an empty file.

    Raises:
        OSError: there was no room for all of them.
    """
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _make(root: str) -> None:
    fd = open_path(root.encode(), WAY)
    try:
        with suppress(FileExistsError):
            os.mkdir(USAGE, 0o700, dir_fd=fd)
    finally:
        os.close(fd)
