"""Opening: opens the files of keys to read, each in as few steps as a batch of them allows.

No path is walked twice where that costs more than to hold its folder open. It reads no byte.
"""

import os
from collections.abc import Sequence
from typing import Protocol

from unikv.backends.file_direct import Direct
from unikv.backends.file_folders import Folders
from unikv.backends.file_names import path_of
from unikv.backends.linux import AT_FDCWD, READ, WAY, try_open, try_open_in
from unikv.store import Span

_MANY = 8
"""Spans for which the root is opened once, and their paths begin there."""

_TOGETHER = 4
"""Keys of one folder in a row for which that is opened."""


class Files(Protocol):
    """Opens the files of keys beneath one root, for one batch. Close it."""

    def open(self, key: str) -> int:
        """Return a descriptor of a key's file, through no link, or minus the errno.

        Raises:
            KeyFormatError: no store can hold the key.
        """
        ...

    def close(self) -> None:
        """Close the folders that were held open, of files none."""
        ...


def files_of(root: str, spans: Sequence[Span], direct: Direct | None) -> Files:
    """Return what opens the files of spans, past the page cache if so."""
    # Pages are alike: as many chunks as the first one has, the others have.
    if direct is None and len(spans) >= _MANY and _share_folder(spans[:_TOGETHER]):
        return _Together(root)
    return _Apart(root, direct, many=len(spans) >= _MANY)


class _Apart:
    """Opens each file by its path, from the root where it is opened for ``many``."""

    __slots__ = ("_at", "_base", "_direct", "_fd")

    def __init__(self, root: str, direct: Direct | None, *, many: bool) -> None:
        self._direct = direct
        self._fd = try_open(root.encode(), WAY) if many else -1
        self._base, self._at = (".", self._fd) if self._fd >= 0 else (root, AT_FDCWD)

    def open(self, key: str) -> int:
        path = path_of(self._base, key)
        if self._direct is not None:
            return self._direct.open(path, self._at)
        return try_open(path, READ, self._at)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Together:
    """Opens files from their folder, which is opened once for keys in a row that share it."""

    __slots__ = ("_folders",)

    def __init__(self, root: str) -> None:
        self._folders = Folders(root)

    def open(self, key: str) -> int:
        folder = self._folders.open(key)
        return folder if folder < 0 else try_open_in(folder, key, READ)

    def close(self) -> None:
        self._folders.close()


def _share_folder(spans: Sequence[Span]) -> bool:
    digits = spans[0].key[:4]
    return all(span.key.startswith(digits) for span in spans)
