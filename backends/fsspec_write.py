"""FsspecWriter: stores objects in a file system of fsspec, whole or not at all. No batches.

An object is written at once where the file system shows it only then, else beside its place and
renamed. One writer of a key at a time in this process; of other processes' writers the last stays.
"""

import errno
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from unikv.backends.batch import item_bytes
from unikv.backends.fsspec_calls import FsspecCalls, is_silence
from unikv.backends.fsspec_place import FsspecPlace
from unikv.errors import StoreError
from unikv.store import Buffer, Outcome

TEMPORARY = ".tmp-fsspec"  # no key begins with a dot
_LOCKS = 64
_NO_CONFLICT = (ConnectionError, TimeoutError, PermissionError, FileNotFoundError)
_DAY_S = 86_400.0


class FsspecWriter:
    """Writes and removes objects of one place."""

    def __init__(self, place: FsspecPlace, calls: FsspecCalls) -> None:
        self._calls = calls
        self._publish = place.publish
        self._local = place.local
        self._root = place.root
        self._temporary = f"{place.root}/{TEMPORARY}"
        self._locks = [Lock() for _ in range(_LOCKS)]

    def prepare(self) -> None:
        """Make the folders that renaming needs.

        Raises:
            StoreError: files cannot be renamed from there into their places.
        """
        self._calls.make_folder(self._temporary)
        if self._local:
            root, temporary = Path(self._root).stat(), Path(self._temporary).lstat()
            if root.st_dev != temporary.st_dev or not stat.S_ISDIR(temporary.st_mode):
                raise StoreError(
                    f"{TEMPORARY} beneath it must be a folder of the same file system, or objects "
                    "could not be renamed into their places"
                )

    def put(self, path: str, buffers: Sequence[Buffer], *, replace: bool) -> Outcome:
        """Store an object; see `unikv.store.Store.put`.

        Raises:
            StoreError: a buffer is wrong, or the file system cannot publish objects.
            Exception: what the file system raised.
        """
        size = item_bytes(buffers)
        if self._publish == "never":
            raise StoreError(
                "this file system neither publishes files whole nor renames them: if it does, say "
                "publish=whole in the URL"
            )
        with self._lock(path):
            there = None if replace else self._calls.size(path)
            if there == size:
                return Outcome.EXISTED
            if self._publish == "rename":
                return self._rename(path, buffers, size)
            data = _joined(buffers)
            return self._write(path, data, create=not replace and there is None)

    def delete(self, path: str) -> bool:
        """Remove an object; return whether there was one."""
        with self._lock(path):
            # S3 removes what is not there without a word.
            return self._calls.size(path) is not None and self._calls.remove(path)

    def sweep(self, older_than_s: float = _DAY_S) -> int:
        """Remove what writers left that died; return how many files."""
        before = time.time() - older_than_s
        left = [file for file in self._calls.folder(self._temporary) if file.kind == "file"]
        old = [file for file in left if file.mtime is not None and file.mtime <= before]
        return sum(self._calls.remove(file.path) for file in old)

    def _write(self, path: str, data: bytes, *, create: bool) -> Outcome:
        try:
            self._calls.write(path, data, create=create)
        except _NO_CONFLICT:
            raise
        except OSError as error:  # each server tells a lost race in its own way
            there = self._calls.size(path) if create else None
            if there == len(data):  # somebody else was first
                return Outcome.EXISTED
            if there is None and not (create and error.errno == errno.ENOSYS):
                raise
            self._calls.write(path, data, create=False)
        return Outcome.OK

    def _rename(self, path: str, buffers: Sequence[Buffer], size: int) -> Outcome:
        part = f"{self._temporary}/{secrets.token_hex(16)}"
        try:
            self._calls.write_part(part, buffers, size)
            self._calls.move(part, path)
        except BaseException as error:
            if not is_silence(error):
                with suppress(Exception):  # the error that counts is the first
                    self._calls.remove(part)
            raise
        return Outcome.OK

    def _lock(self, path: str) -> Lock:
        return self._locks[hash(path) % _LOCKS]


def _joined(buffers: Sequence[Buffer]) -> bytes:
    """Return the bytes of some buffers: clients of object stores take no views."""
    if len(buffers) == 1 and isinstance(buffers[0], bytes):
        return buffers[0]
    return b"".join(buffers)
