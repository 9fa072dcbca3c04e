"""FileStore: objects as files beneath a root, written whole or not at all. It knows no KV."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from unikv.backends.batch import Batch, explain
from unikv.backends.file_folders import Folders, sync_folder
from unikv.backends.file_list import entries
from unikv.backends.file_names import folder_of
from unikv.backends.file_read import NONE_THERE, read_spans
from unikv.backends.file_temp import TempFolders, ensure_parent, sweep
from unikv.backends.file_write import NO_FILE, Writer, size_of
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError, UrlError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span


class FileStore:
    """A `unikv.store.Store` on a file system. Believes nothing it saw before: others write too.

    Args:
        root: the folder, made if there is none.
        durable: whether what this store writes outlives a loss of power (fsync of file and
            folder); nothing is said of an object that another wrote, which `put` finds there.
        readonly: make and change nothing, in a folder that need not be writable: every item of a
            `put` or `delete` fails, and `sweep` raises.

    Raises:
        StoreError: ``root`` cannot be made, is no folder, or cannot be written to; if
            ``readonly``: there is no such folder, or it cannot be read.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, durable: bool = False, readonly: bool = False
    ) -> None:
        try:
            self.root = os.path.realpath(root)
            self.root.encode()  # paths are handed on as UTF-8
            (_require if readonly else _prepare)(Path(self.root))
        except (OSError, ValueError) as error:  # ValueError: NUL, or not UTF-8
            raise explain(f"open file store {os.fspath(root)!r:.300}", error) from error
        self._durable = durable
        self._readonly = readonly
        self._temps = TempFolders(self.root)
        self._closed = False

    def __repr__(self) -> str:
        readonly = ", readonly=True" if self._readonly else ""
        return f"FileStore({self.root!r}, durable={self._durable}{readonly})"

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object as a file of its own; see `unikv.store.Store.put`."""
        self._require_open()
        if self._readonly:
            return self._refuse("put", [item.key for item in items])
        batch = Batch(len(items))
        writer = Writer(self.root, self._temps, durable=self._durable)
        written: dict[str, list[int]] = {}
        for position, (key, buffers) in enumerate(items):
            try:
                code = writer.put(key, buffers, replace=replace)
            except (OSError, KeyFormatError) as error:
                batch.fail(position, f"put {key!r:.200}", error)
                continue
            batch.codes[position] = code
            if self._durable and code is Outcome.OK:
                written.setdefault(folder_of(key), []).append(position)
        for folder, positions in written.items():
            try:
                sync_folder(self.root, folder)
            except OSError as error:
                for position in positions:
                    batch.fail(position, f"put {items[position].key!r}: sync its folder", error)
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Read into each span's views, straight from the file; see `unikv.store.Store.get`.

        Spans of one key in a row are read from one version of it.
        """
        self._require_open()
        batch = Batch(len(spans))
        read_spans(self.root, spans, batch)
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`."""
        self._require_open()
        with closing(Folders(self.root)) as folders:
            return [_stat(folders, key) for key in keys]

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object's file; see `unikv.store.Store.delete`."""
        self._require_open()
        if self._readonly:
            return self._refuse("delete", keys)
        batch = Batch(len(keys))
        with closing(Folders(self.root)) as folders:
            for position, key in enumerate(keys):
                try:
                    if not _delete(folders, key):
                        batch.codes[position] = Outcome.MISS
                except (OSError, KeyFormatError) as error:
                    batch.fail(position, f"delete {key!r:.200}", error)
        return batch.outcomes()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects, folder by folder; see `unikv.store.Store.list`."""
        self._require_open()
        return entries(self.root, prefix)

    def sweep(self) -> int:
        """Remove the temporary files of writers that died; return how many there were.

        It never touches those of a live writer, in whatever process or container.

        Raises:
            StoreError: a file could not be removed, or the store is read-only.
        """
        self._require_open()
        try:
            if self._readonly:
                raise _no_writing()
            return sweep(self.root)
        except OSError as error:
            raise explain(f"sweep {self.root!r}", error) from error

    def close(self) -> None:
        """Let go of the temporary folder; see `unikv.store.Store.close`."""
        self._closed = True
        self._temps.close()

    def _refuse(self, verb: str, keys: Sequence[str]) -> Outcomes:
        """Fail every item of a batch that would change something."""
        batch = Batch(len(keys))
        for position, key in enumerate(keys):
            batch.fail(position, f"{verb} {key!r:.200}", _no_writing())
        return batch.outcomes()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"this file store is closed: {self.root!r}")


def open_url(url: StoreUrl) -> FileStore:
    """Open ``file:///path``, with ``durable=1`` if stored objects shall outlive a power loss.

    With ``readonly=1`` nothing can be stored, and no folder is made.
    """
    if url.authority or not url.path.strip("/"):
        raise UrlError(
            f"store URL {url.shown!r:.200}: want file:/// and the absolute path of a folder, "
            "as in file:///var/kv; hosts and relative paths are not for it"
        )
    url.refuse_options_except("durable", "readonly")
    return FileStore(url.path, durable=url.flag("durable"), readonly=url.flag("readonly"))


def _prepare(root: Path) -> None:
    """Make the root if there is none; raise `OSError` unless it can be written to."""
    if root.exists() and not root.is_dir():
        raise StoreError("it is a file: want a folder")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        raise StoreError("it is not writable")
    os.close(ensure_parent(str(root)))


def _require(root: Path) -> None:
    """Raise `OSError` unless the root is a folder that can be read."""
    if not root.is_dir():
        raise StoreError("there is no such folder, and a store that is read-only makes none")
    if not os.access(root, os.R_OK | os.X_OK):
        raise StoreError("it is not readable")


def _no_writing() -> StoreError:
    return StoreError("the store is read-only: open it without readonly to change it")


def _stat(folders: Folders, key: str) -> int | None:
    """Return an object's size, None if there is none or it cannot be told."""
    try:
        fd = folders.open(key)
        if fd < 0:
            return None
        size = size_of(os.stat(key, dir_fd=fd, follow_symlinks=False))
    except (OSError, KeyFormatError):
        return None
    return None if size == NO_FILE else size


def _delete(folders: Folders, key: str) -> bool:
    """Remove an object's file; return whether it was there."""
    fd = folders.open(key)
    if fd < 0:
        if fd in NONE_THERE:
            return False
        raise OSError(-fd, os.strerror(-fd))
    try:
        os.unlink(key, dir_fd=fd)
    except FileNotFoundError:
        return False
    return True
