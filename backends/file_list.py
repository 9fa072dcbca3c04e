"""Listing: streams the objects beneath a root, folder by folder. It opens no file."""

import errno
import os
from collections.abc import Iterator

from unikv.backends.batch import explain
from unikv.backends.file_folders import names_in
from unikv.backends.file_names import OTHERS, folder_of, folders_for
from unikv.backends.linux import FOLDER, open_path
from unikv.errors import KeyFormatError
from unikv.store import Entry

_NOT_OURS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def entries(root: str, prefix: str) -> Iterator[Entry]:
    """Yield the objects whose key begins with ``prefix``; foreign names and links are not shown.

    Raises:
        StoreError: a folder cannot be read.
    """
    try:
        yield from _objects(root, OTHERS, prefix)
        for first in folders_for(_names(root, "."), prefix, depth=0):
            for second in folders_for(_names(root, first), prefix, depth=1):
                yield from _objects(root, f"{first}/{second}", prefix)
    except OSError as error:
        raise explain(f"list {prefix!r:.200}", error) from error


def _objects(root: str, folder: str, prefix: str) -> Iterator[Entry]:
    """Yield the objects in one folder."""
    fd = _open(root, folder)
    if fd < 0:
        return
    try:
        with os.scandir(fd) as files:
            for file in files:
                if not (file.name.startswith(prefix) and _belongs(file.name, folder)):
                    continue
                try:
                    if file.is_file(follow_symlinks=False):
                        found = file.stat(follow_symlinks=False)
                        yield Entry(file.name, found.st_size, found.st_mtime)
                except FileNotFoundError:  # deleted meanwhile
                    continue
    finally:
        os.close(fd)


def _names(root: str, folder: str) -> list[str]:
    """Return the names in a folder."""
    fd = _open(root, folder)
    if fd < 0:
        return []
    try:
        return names_in(fd)
    finally:
        os.close(fd)


def _open(root: str, folder: str) -> int:
    """Open a folder; -1 if there is none or something else has its name."""
    try:
        return open_path(f"{root}/{folder}".encode(), FOLDER)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return -1
        raise


def _belongs(name: str, folder: str) -> bool:
    """Return whether a file is an object that lies where it should."""
    try:
        return folder_of(name) == folder
    except KeyFormatError:
        return False
