"""Folders: opens, makes and syncs the folders that files lie in, through no link. No files."""

import os
from contextlib import suppress

from unikv.backends.file_names import folder_of, is_page_key
from unikv.backends.linux import FOLDER, WAY, How, open_in, open_path, try_open


class Folders:
    """Opens the folder of one key after the other; keys in a row that share one open it once.

    They are the way to names in them; opened by ``how=FOLDER`` their own names can be read, too.
    """

    __slots__ = ("_digits", "_fd", "_folder", "_how", "_root")

    def __init__(self, root: str, how: How = WAY) -> None:
        self._root = root
        self._how = how
        self._folder = self._digits = ""
        self._fd = -1

    def open(self, key: str) -> int:
        """Return a descriptor of the folder that a key's file lies in, or minus the errno.

        The descriptor stays this object's own, until the next call.
        """
        if key[:4] == self._digits and is_page_key(key):  # most: `folder_of`, without the call
            return self._fd
        folder = folder_of(key)
        if folder != self._folder:
            self.close()
            self._fd = try_open(f"{self._root}/{folder}".encode(), self._how)
            self._folder, self._digits = folder, folder.replace("/", "")
        return self._fd

    def close(self) -> None:
        """Close the folder that is open, if any."""
        fd, self._fd = self._fd, -1
        self._folder = self._digits = ""
        if fd >= 0:
            os.close(fd)


def make_folder(root: str, folder: str, *, durable: bool) -> None:
    """Make a folder beneath ``root``, which is there, with all between; it may be there already."""
    fd = os.open(root, FOLDER.flags)
    try:
        for name in folder.split("/"):
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
            if durable:  # another writer may have made it, and not synced it yet
                os.fsync(fd)
            parent, fd = fd, open_in(fd, name, FOLDER)
            os.close(parent)
    finally:
        os.close(fd)


def names_in(fd: int) -> list[str]:
    """Return the names in a folder that is open."""
    return os.listdir(fd)


def sync_folder(root: str, folder: str) -> None:
    """Wait until the names in a folder would outlive a loss of power."""
    fd = open_path(f"{root}/{folder}".encode(), FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
