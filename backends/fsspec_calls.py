"""FsspecCalls: the calls of a file system that a store needs, typed and bounded in time.

They know no key. What the file system raises, they let through.
"""

import inspect
import os
import posixpath
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from fsspec.asyn import sync  # type: ignore[import-untyped]

from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Buffer

_THREAD_SAFE = ("file", "local", "memory")
_HTTP = "fsspec.implementations.http"
_ABSENT = (404, 410)
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")


class _LinkError(StoreError):
    """A symbolic link where none may be."""


class Found(NamedTuple):
    """A file as a listing shows it."""

    path: str
    kind: str
    """ "file", "directory", or something else; a link is something else."""
    size: int
    mtime: float | None


class FsspecCalls:
    """Calls of one file system, from any thread.

    Those of fsspec's async file systems run in its loop, each within ``timeout`` seconds. The
    others run in the caller's thread, one at a time unless their file system is known to take
    more; what bounds them is their own client library.
    """

    def __init__(self, fs: Any, protocol: str, timeout: float) -> None:
        self._fs = fs
        self._timeout = timeout
        self.concurrent = bool(getattr(fs, "async_impl", False))
        serial = not (self.concurrent or protocol in _THREAD_SAFE)
        self._turn: AbstractContextManager[object] = RLock() if serial else nullcontext()
        self._local = protocol in ("file", "local")
        self._http = is_http(fs)
        self._exclusive = self._takes("pipe_file", "mode")
        self.narrows = self._takes("find", "prefix")
        """Whether it lists what begins with a prefix without listing the rest."""

    def size(self, path: str) -> int | None:
        """Return a file's size, None where there is no file, -1 where it is not told."""
        try:
            info = self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _size(info) if _kind(info) == "file" else None

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder, or may be: where looking is forbidden."""
        try:
            self._info(path)
        except FileNotFoundError:
            return False
        except PermissionError:
            return True
        return True

    def require_plain(self, path: str) -> None:
        """Raise `StoreError` if a symbolic link of this machine leads to a file, or elsewhere."""
        if self._local and os.path.realpath(path) != path:
            raise _LinkError("a symbolic link has its place: want none beneath the root")

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of a range; fewer where the file ends before."""
        data: bytes = self._do("cat_file", path, start=start, end=stop)
        return data

    def write(self, path: str, data: bytes, *, create: bool) -> None:
        """Write a file at once; ``create`` asks for an error where there is one, which few give."""
        if create and self._exclusive:
            self._do("pipe_file", path, data, mode="create")
        else:
            self._do("pipe_file", path, data)

    def write_part(self, path: str, buffers: Sequence[Buffer], size: int) -> None:
        """Write a file that nobody looks at yet.

        Raises:
            StoreError: a symbolic link leads there.
            OSError: it has not as many bytes as it should.
        """
        self.require_plain(path)
        with self._turn:
            try:
                self._write(path, buffers)
            except FileNotFoundError:
                self.make_folder(posixpath.dirname(path))
                self._write(path, buffers)
            wrote = self.size(path)
            if wrote not in (size, UNKNOWN_SIZE):
                raise OSError(f"wrote {size} bytes, the file has {wrote}")

    def move(self, source: str, target: str) -> None:
        """Rename a file over whatever has the name.

        Where a file system renames onto nothing only, there is nothing for a moment.

        Raises:
            OSError: it was not renamed.
        """
        with self._turn:
            try:
                self._rename(source, target)
            except FileNotFoundError:
                self.make_folder(posixpath.dirname(target))
                self._rename(source, target)
            except Exception as error:
                if self._local or is_silence(error) or not self.remove(target):
                    raise
                self._rename(source, target)
            # WebHDFS answers "false", which fsspec does not look at.
            if not self._local and self.size(source) is not None:
                self.remove(target)
                self._rename(source, target)
                if self.size(source) is not None:
                    raise OSError("the file system does not rename")

    def remove(self, path: str) -> bool:
        """Remove a file; return False if there was none."""
        try:
            self._do("rm_file", path)
        except FileNotFoundError:
            return False
        return True

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it."""
        with suppress(FileExistsError):
            self._do("makedirs", path, exist_ok=True)

    def folder(self, path: str) -> Iterator[Found]:
        """Yield what is in a folder; nothing if there is none, or a symbolic link in its place."""
        try:
            self.require_plain(path)
            found = self.require_folder(path)
        except (FileNotFoundError, NotADirectoryError, _LinkError):
            return
        yield from map(_found, found)

    def require_folder(self, path: str) -> list[Mapping[str, Any]]:
        """Return what is in a folder. Raises `FileNotFoundError` if there is none."""
        found: list[Mapping[str, Any]] = self._do("ls", path, detail=True)
        return found

    def beginning_with(self, folder: str, prefix: str) -> Iterator[Found]:
        """Yield all files beneath a folder whose path there begins with a prefix."""
        try:
            found: Mapping[str, Any] = self._do("find", folder, detail=True, prefix=prefix)
        except FileNotFoundError:
            return
        yield from map(_found, found.values())

    def _info(self, path: str) -> Mapping[str, Any]:
        try:
            info: Mapping[str, Any] = self._do("info", path)
        except FileNotFoundError as error:
            cause = error.__cause__
            if self._http and isinstance(cause, Exception) and _status(cause) not in _ABSENT:
                raise cause from None  # fsspec's HTTP calls any failure "not found"
            raise
        return info

    def _rename(self, source: str, target: str) -> None:
        if self._local:  # fsspec's copies, byte by byte in view, where it cannot rename at once
            Path(source).replace(target)
        else:
            self._do("mv", source, target)

    def _write(self, path: str, buffers: Sequence[Buffer]) -> None:
        with self._fs.open(path, "wb") as file:
            for buffer in buffers:
                view = memoryview(buffer)
                if view.nbytes:
                    file.write(view.cast("B"))

    def _do(self, name: str, *args: object, **options: object) -> Any:
        inner = getattr(self._fs, f"_{name}", None)
        if self.concurrent and inspect.iscoroutinefunction(inner):
            return sync(self._fs.loop, inner, *args, timeout=self._timeout, **options)
        with self._turn:
            return getattr(self._fs, name)(*args, **options)

    def _takes(self, name: str, parameter: str) -> bool:
        inner = getattr(self._fs, f"_{name}", None) if self.concurrent else None
        call = inner or getattr(self._fs, name)
        return parameter in inspect.signature(call).parameters


def is_http(fs: object) -> bool:
    """Return whether a file system is fsspec's of HTTP, or made of it."""
    module = sys.modules.get(_HTTP)  # to import it may not be possible, nor be needed
    return module is not None and isinstance(fs, module.HTTPFileSystem)


def is_silence(error: BaseException) -> bool:
    """Return whether a call failed because nothing answered in time."""
    return isinstance(error, TimeoutError) or any(
        "Timeout" in kind.__name__ for kind in type(error).__mro__
    )


def _status(error: Exception) -> object:
    return getattr(error, "status", None)


def _found(info: Mapping[str, Any]) -> Found:
    times = (_seconds(info.get(name)) for name in _TIMES)
    return Found(str(info["name"]), _kind(info), _size(info), next(filter(None, times), None))


def _kind(info: Mapping[str, Any]) -> str:
    return "link" if info.get("islink") else str(info.get("type", "file"))


def _size(info: Mapping[str, Any]) -> int:
    size = info.get("size")
    return UNKNOWN_SIZE if size is None else int(size)


def _seconds(value: object) -> float | None:
    """Return a time as file systems tell it in seconds since the epoch, None if it is none."""
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else None
