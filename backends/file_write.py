"""Writer: puts a file at its place, whole or not at all. It knows no batches."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from unikv.backends.batch import item_bytes
from unikv.backends.file_direct import Direct
from unikv.backends.file_folders import make_folder
from unikv.backends.file_names import folder_of, path_of
from unikv.backends.file_read import NONE_THERE
from unikv.backends.file_size import room_of
from unikv.backends.file_temp import TempFolder, TempFolders
from unikv.backends.linux import LOOK, rename_new, try_open
from unikv.backends.vector import write_from
from unikv.store import Buffer, Outcome

NO_FILE = -1
"""In place of the size of something that is no regular file."""

OK, EXISTED, _, _ = Outcome  # members of an enum are slow to look up

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Writer:
    """Writes files beneath a root, for one batch."""

    __slots__ = ("_direct", "_durable", "_folder", "_root", "_sizes", "_temps", "path")

    def __init__(
        self, root: str, temps: TempFolders, *, durable: bool, direct: Direct | None = None
    ) -> None:
        self.path = b""  # of the last object
        self._root = root
        self._durable = durable
        self._direct = direct
        self._temps = temps
        self._folder: TempFolder | None = None
        self._sizes: tuple[int, int | None] = (0, 0)

    @property
    def grown(self) -> int:
        """Bytes, in whole blocks, that the last object stored takes more than what was there."""
        size, found = self._sizes
        return room_of(size) - room_of(found or 0)

    def put(self, key: str, buffers: Sequence[Buffer], *, replace: bool) -> Outcome:
        """Store one object; see `unikv.store.Store.put`.

        Raises:
            OSError: it could not be stored; nothing is left of it.
            KeyFormatError: no store can hold the key.
        """
        path = self.path = path_of(self._root, key)
        size = item_bytes(buffers)
        found = _find(path)
        if found == size and not replace:
            return EXISTED
        move = rename_new if found is None and not replace else os.replace
        temp, fd = self._open_temp()
        try:
            try:
                if self._direct is None:
                    write_from(fd, buffers, size)
                else:
                    self._direct.write(fd, buffers, size)
                if self._durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            try:
                move(temp, path)
            except FileNotFoundError:
                make_folder(self._root, folder_of(key), durable=self._durable)
                move(temp, path)
        except FileExistsError:
            return self._overtake(temp, path, size)
        except BaseException:
            _discard(temp)
            raise
        self._sizes = size, found
        return OK

    def _open_temp(self) -> tuple[bytes, int]:
        """Make a temporary file; return its path and its descriptor."""
        if self._folder is None:
            folder = self._temps.mine()
            folder.check()
            self._folder = folder
        path = self._folder.new_path()
        try:
            return path, self._open_new(path)
        except FileNotFoundError:  # somebody cleared the root by hand
            self._folder = self._temps.another(self._folder)
        path = self._folder.new_path()
        return path, self._open_new(path)

    def _open_new(self, path: bytes) -> int:
        if self._direct is None:
            return os.open(path, _NEW_FILE, 0o600)
        return self._direct.open_new(path, _NEW_FILE)

    def _overtake(self, temp: bytes, path: bytes, size: int) -> Outcome:
        """Finish a put that another writer overtook: what it wrote stays if its size is right."""
        try:
            found = _find(path)
            if found != size:
                os.replace(temp, path)  # noqa: PTH105 - a Path takes no bytes
                self._sizes = size, found
                return OK
        except BaseException:
            _discard(temp)
            raise
        _discard(temp)
        return EXISTED


def size_of(found: os.stat_result) -> int:
    """Return the size of a regular file, `NO_FILE` for anything else."""
    return found.st_size if stat.S_ISREG(found.st_mode) else NO_FILE


def _find(path: bytes) -> int | None:
    """Return the size of a file, None if there is none, `NO_FILE` if it is something else."""
    fd = try_open(path, LOOK)
    if fd < 0:
        if fd in NONE_THERE:
            return None
        raise OSError(-fd, os.strerror(-fd))
    try:
        return size_of(os.fstat(fd))
    finally:
        os.close(fd)


def _discard(temp: bytes) -> None:
    """Remove a temporary file; one that stays is swept later."""
    with suppress(OSError):
        Path(os.fsdecode(temp)).unlink()
