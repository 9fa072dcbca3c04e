"""FileStore: objects as files beneath a root, written whole or not at all. It knows no KV."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from unikv.backends.batch import Batch, explain, raise_outage
from unikv.backends.file_bound import Bound
from unikv.backends.file_direct import Direct
from unikv.backends.file_fault import said_right
from unikv.backends.file_folders import Folders, sync_folder
from unikv.backends.file_limits import Limits
from unikv.backends.file_list import entries
from unikv.backends.file_names import folder_of
from unikv.backends.file_read import NONE_THERE, read_spans
from unikv.backends.file_size import room_of
from unikv.backends.file_temp import TempFolders, ensure_parent, sweep
from unikv.backends.file_url import Options, parse_options, url_of
from unikv.backends.file_usage import Usage, count
from unikv.backends.file_write import NO_FILE, Writer, size_of
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, SpecError, StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span


class FileStore:
    """A `unikv.store.Store` on a file system. Believes nothing it saw before: others write too.

    Args:
        root: the folder, made if there is none.
        durable: whether what this store writes outlives a loss of power (fsync of file and
            folder); nothing is said of an object that another wrote, which `put` finds there.
        readonly: make and change nothing, in a folder that need not be writable: every item of a
            `put` or `delete` fails, and `sweep` raises. Goes with no bound.
        direct: read and write past the page cache (O_DIRECT) where the file system can;
            `direct_note` says so where it cannot.
        max_bytes: bound on the room that objects take, in whole blocks of 4 KiB. What was
            requested longest ago is evicted, by a process that the first writer starts. All that
            share a root share its usage, and the smallest bound wins. None: no bound.
        min_free: bytes that shall stay free on the disk, whoever fills it. None: no floor.

    Raises:
        SpecError: an argument of another type, or an empty ``root``.
        StoreError: ``root`` cannot be made, is no folder, or cannot be written to; a bound of no
            bytes, or of more than any disk has; if ``readonly``: there is no such folder, it
            cannot be read, or a bound is given.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durable: bool = False,
        readonly: bool = False,
        direct: bool = False,
        max_bytes: int | None = None,
        min_free: int | None = None,
    ) -> None:
        path = _check_root(root)
        try:
            self._options = Options(durable, readonly, direct, max_bytes, min_free).checked()
            limits = _check_limits(self._options)
            self.root = os.path.realpath(path)
            self.root.encode()  # paths are handed on as UTF-8
            (_require if readonly else _prepare)(Path(self.root))
            self._bound = Bound(self.root, limits) if limits else None
        except SpecError:
            raise
        except (OSError, ValueError) as error:  # ValueError: NUL, or not UTF-8
            raise explain(f"open file store {path!r:.300}", error) from error
        self._direct = Direct() if direct else None
        self._temps = TempFolders(self.root)
        self._closed = False

    def __repr__(self) -> str:
        return f"FileStore({self.root!r}, {self._options!r})"

    @property
    def opener(self) -> Opener:
        """How another process opens an equal store."""
        return Opener("unikv.registry", "open_store", [url_of(self.root, self._options)])

    @property
    def direct_note(self) -> str | None:
        """Why a store with ``direct`` goes through the page cache; None while it does not."""
        return self._direct.note if self._direct else None

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object as a file of its own; see `unikv.store.Store.put`.

        With a bound, one that is larger than all of it fails, and a full disk is made room on.
        """
        return self.put_in_turn(items, replace=replace)

    def put_in_turn(self, items: Iterable[Item], *, replace: bool = False) -> Outcomes:
        """Do as `put`; each object is stored before the next one is asked for."""
        self._require_open()
        if self._options.readonly:
            return self._refuse("put", [item.key for item in items])
        batch = Batch(0)
        durable, bound = self._options.durable, self._bound
        writer = Writer(self.root, self._temps, durable=durable, direct=self._direct)
        put = bound.putter(writer) if bound else writer.put
        written: dict[str, list[tuple[int, str]]] = {}
        for position, (key, buffers) in enumerate(items):
            batch.codes.append(Outcome.OK)
            try:
                code = put(key, buffers, replace=replace)
            except (OSError, KeyFormatError) as error:
                batch.fail(position, f"put {key!r:.200}", said_right(error))
                continue
            batch.codes[position] = code
            if durable:  # also of what is there: its writer may not have got so far
                written.setdefault(folder_of(key), []).append((position, key))
        for folder, those in written.items():
            try:
                sync_folder(self.root, folder)
            except OSError as error:
                for position, key in those:
                    batch.fail(position, f"put {key!r}: sync its folder", error)
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Read into each span's views, straight from the file; see `unikv.store.Store.get`.

        Spans of one key in a row are read from one version of it.
        """
        return self.get_in_turn(spans, None)

    def get_in_turn(self, spans: Sequence[Span], came: Callable[[int], None] | None) -> Outcomes:
        """Do as `get`, and call ``came`` with the position of each span as soon as it is filled."""
        self._require_open()
        batch = Batch(len(spans))
        size_of = self._bound.sizer() if self._bound else None
        read_spans(self.root, spans, batch, size_of=size_of, direct=self._direct, came=came)
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`."""
        self._require_open()
        sizes: list[int | None] = [None] * len(keys)
        errors: list[StoreError] = []
        wrong = 0
        with closing(Folders(self.root)) as folders:
            for n, key in enumerate(keys):
                try:
                    sizes[n] = _stat(folders, key, errors)
                except KeyFormatError:  # of no object
                    wrong += 1
        raise_outage(len(keys) - wrong, errors)
        return sizes

    def refresh(self, keys: Sequence[str]) -> None:
        """Note that objects were requested, if eviction is to know; `stat` alone is no request."""
        self._require_open()
        if self._bound:
            with closing(Folders(self.root)) as folders:
                self._bound.refresh(folders, keys)

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object's file; see `unikv.store.Store.delete`."""
        self._require_open()
        if self._options.readonly:
            return self._refuse("delete", keys)
        batch = Batch(len(keys))
        with closing(Folders(self.root)) as folders:
            for position, key in enumerate(keys):
                try:
                    if not _delete(folders, key, self._bound):
                        batch.codes[position] = Outcome.MISS
                except (OSError, KeyFormatError) as error:
                    batch.fail(position, f"delete {key!r:.200}", said_right(error))
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
            if self._options.readonly:
                raise _no_writing()
            return sweep(self.root)
        except OSError as error:
            raise explain(f"sweep {self.root!r}", error) from error

    def usage(self) -> Usage:
        """Count what lies beneath the root, which takes as long as listing it.

        Raises:
            StoreError: the record of usage cannot be read.
        """
        self._require_open()
        try:
            counted = count(self.root)
            return self._bound.complete(counted) if self._bound else counted
        except OSError as error:
            raise explain(f"count {self.root!r}", error) from error

    def close(self) -> None:
        """End eviction by this process, let go of the temporary folder; see `Store.close`."""
        self._closed = True
        if self._bound:
            self._bound.close()
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
    """Open ``file:///path`` with the options of `FileStore` of the same names.

    Sizes may have units: 10GB is 10^10 bytes, 10GiB and 10G are 10 * 2^30.
    """
    return FileStore(url.path, **parse_options(url)._asdict())


def _check_root(root: object) -> str:
    """Return a root as a text; raise `SpecError` where it can be none."""
    try:
        path = os.fspath(root)  # type: ignore[call-overload] # what is none is refused
    except TypeError:
        path = root
    if not isinstance(path, str):
        raise SpecError(
            f"root of type {type(root).__name__} of a file store: want the path of a folder, as "
            "text or a Path"
        )
    if not path:
        raise SpecError(
            "root '' of a file store: want the path of a folder; '.' is where this runs"
        )
    return path


def _check_limits(options: Options) -> Limits | None:
    """Return the bounds of a store, None if it has none."""
    limits = Limits(options.max_bytes, options.min_free)
    if limits == Limits():
        return None
    if options.readonly:
        raise StoreError("it is read-only, and a bound means to evict: want one of the two")
    return limits


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


def _stat(folders: Folders, key: str, errors: list[StoreError]) -> int | None:
    """Return an object's size, None if there is none or it cannot be told: then note why."""
    try:
        fd = folders.open(key)
        if fd in NONE_THERE:
            return None
        if fd < 0:
            raise OSError(-fd, os.strerror(-fd))  # noqa: TRY301 - noted like the others
        size = size_of(os.stat(key, dir_fd=fd, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:  # a link is no object: that is told
            errors.append(explain(f"stat {key!r:.200}", said_right(error)))
        return None
    return None if size == NO_FILE else size


def _delete(folders: Folders, key: str, bound: Bound | None) -> bool:
    """Remove an object's file; return whether it was there."""
    fd = folders.open(key)
    if fd < 0:
        if fd in NONE_THERE:
            return False
        raise OSError(-fd, os.strerror(-fd))
    try:
        room = _room(fd, key) if bound else 0
        os.unlink(key, dir_fd=fd)
    except FileNotFoundError:
        return False
    if bound:
        bound.deleted(folder_of(key), room)
    return True


def _room(fd: int, key: str) -> int:
    """Return what room an object in an open folder takes."""
    return room_of(max(size_of(os.stat(key, dir_fd=fd, follow_symlinks=False)), 0))
