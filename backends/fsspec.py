"""FsspecStore: objects as files of any file system of fsspec. It knows no KV, and none of these."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from unikv.backends.batch import Batch, raise_outage, span_bytes
from unikv.backends.file_names import folder_of
from unikv.backends.fsspec_calls import FsspecCalls, is_silence
from unikv.backends.fsspec_errors import explain_error
from unikv.backends.fsspec_list import flat_entries, foldered_entries
from unikv.backends.fsspec_place import FsspecPlace, open_place
from unikv.backends.fsspec_read import read_span
from unikv.backends.fsspec_write import FsspecWriter
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span, check_key

_T = TypeVar("_T")
_R = TypeVar("_R")

_LOOK_AGAIN_S = 10.0
"""For how long a bucket or root that was there is taken to be there still."""


class FsspecStore:
    """A `unikv.store.Store` on a file system of fsspec. Believes nothing that it saw before.

    Where the file system publishes files whole, as object stores do, a key is the file's name
    beneath the root; elsewhere files lie in folders as those of a `FileStore` do.

    Raises:
        StoreError: the root cannot be made, or the bucket is not there.
    """

    def __init__(self, place: FsspecPlace) -> None:
        self._place = place
        self._calls = FsspecCalls(place.fs, place.protocol, place.timeout)
        self._writer = FsspecWriter(place, self._calls)
        self.costly_stat = self._calls.concurrent  # those that are async speak to a server
        self._flat = place.publish == "whole"
        self._pid = os.getpid()
        self._closed = False
        self._pool = (
            ThreadPoolExecutor(place.threads, thread_name_prefix="unikv-fsspec")
            if self._calls.concurrent
            else None
        )
        self._seen = 0.0  # when the anchor was last seen
        self._open()

    def __repr__(self) -> str:
        return f"FsspecStore({self._place.shown!r})"

    @property
    def opener(self) -> Opener | None:
        """How another process opens the same store; None where it lies in this one's memory."""
        if self._place.protocol == "memory":
            return None
        return Opener("unikv.registry", "open_store", [self._place.text])

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object as a file; see `unikv.store.Store.put`."""

        def put(item: Item) -> Outcome:
            key, buffers = item
            return self._writer.put(self._path(key), buffers, replace=replace)

        return self._each("put", items, lambda item: item[0], put)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill each span's views, with one copy; see `unikv.store.Store.get`."""
        return self._each("get", spans, lambda span: span.key, self._read)

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`.

        Raises:
            StoreError: the file system answered for no key, or the root or bucket is gone.
        """
        self._require_open()
        sizes: list[int | None] = [None] * len(keys)
        paths: dict[int, str] = {}
        for position, key in enumerate(keys):
            with suppress(KeyFormatError, StoreError):  # of this key alone
                paths[position] = self._path(key)
        found = self._spread(
            "stat", list(paths), lambda at: keys[at], lambda at: self._calls.size(paths[at])
        )
        errors = [size for size in found if isinstance(size, StoreError)]
        raise_outage(len(found), errors)
        for position, size in zip(paths, found, strict=True):
            sizes[position] = None if isinstance(size, StoreError) else size
        if len(errors) < len(found) and sizes == [None] * len(keys):
            gone = self._lost_anchor("stat")
            if gone is not None:
                raise gone
        return sizes

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object's file; see `unikv.store.Store.delete`."""

        def delete(key: str) -> Outcome:
            return Outcome.OK if self._writer.delete(self._path(key)) else Outcome.MISS

        return self._each("delete", keys, lambda key: key, delete)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects; see `unikv.store.Store.list` and `unikv.backends.fsspec_list`."""
        self._require_open()
        return self._list(prefix)

    def sweep(self) -> int:
        """Remove temporary files that are older than a day; return how many there were.

        A writer that died leaves one; fsspec has no way to tell it from one that is slow.

        Raises:
            StoreError: one could not be removed.
        """
        self._require_open()
        try:
            return self._writer.sweep()
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            raise self._explained("sweep", error) from None

    def close(self) -> None:
        """Let go of the file system; see `unikv.store.Store.close`."""
        self._closed = True
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=False)

    # One object

    def _path(self, key: str) -> str:
        """Return the path of a key's file.

        Raises:
            KeyFormatError: no store holds such a key.
            StoreError: a symbolic link leads there.
        """
        if self._flat:
            check_key(key)
            path = f"{self._place.root}/{key}"
        else:
            path = f"{self._place.root}/{folder_of(key)}/{key}"
        self._calls.require_plain(path)
        return path

    def _read(self, span: Span) -> Outcome:
        path, wanted = self._path(span.key), span_bytes(span)
        return Outcome.OK if read_span(self._calls, path, span, wanted) else Outcome.MISS

    # Batches

    def _each(
        self,
        verb: str,
        items: Sequence[_T],
        key_of: Callable[[_T], str],
        act: Callable[[_T], Outcome],
    ) -> Outcomes:
        """Act on each item; what the file system raises for one fails that one."""
        self._require_open()
        batch = Batch(len(items))
        missed = []
        for position, done in enumerate(self._spread(verb, items, key_of, act)):
            if isinstance(done, StoreError):
                batch.codes[position] = Outcome.FAILED
                batch.errors[position] = done
            else:
                batch.codes[position] = done
                if done is Outcome.MISS:
                    missed.append(position)
        if missed:
            error = self._lost_anchor(verb)
            if error is not None:
                for position in missed:
                    batch.fail(position, verb, error)
        return batch.outcomes()

    def _spread(
        self,
        verb: str,
        items: Sequence[_T],
        key_of: Callable[[_T], str],
        act: Callable[[_T], _R],
    ) -> Sequence[_R | StoreError]:
        """Do one thing with each item, several at a time where the file system can.

        Once one had no answer in time, those not begun by then fail unasked: a server that is
        silent costs a call one timeout, not one an item.
        """
        silent: list[StoreError] = []

        def attempt(item: _T) -> _R | StoreError:
            doing = f"{verb} {key_of(item)!r:.200}"
            if silent:
                return _unasked(doing, silent[0])
            try:
                return act(item)
            except Exception as error:  # noqa: BLE001 - file systems raise what they like
                told = self._explained(doing, error)
                if is_silence(error):
                    silent.append(told)
                return told

        if self._pool is None or len(items) < 2:
            return [attempt(item) for item in items]
        return list(self._pool.map(attempt, items))

    def _list(self, prefix: str) -> Iterator[Entry]:
        entries = flat_entries if self._flat else foldered_entries
        try:
            if prefix:
                check_key(prefix)
        except KeyFormatError:
            return  # no key begins so, and some servers refuse to be asked
        shown = False
        try:
            self._calls.require_plain(self._place.root)
            for entry in entries(self._calls, self._place.root, prefix):
                shown = True
                yield entry
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            raise self._explained(f"list {prefix!r:.200}", error) from None
        gone = None if shown else self._unlisted()
        if gone is not None:
            raise gone

    # The place

    def _open(self) -> None:
        """Make the root where that is a folder; see that the bucket is there where it is not."""
        try:
            there = self._calls.exists(self._bucket) if self._flat and self._bucket else True
            if self._place.publish == "rename":
                self._writer.prepare()
            elif self._flat and not self._bucket:
                self._calls.make_folder(self._place.root)
        except Exception as error:  # noqa: BLE001 - file systems raise what they like
            raise self._explained(f"open {self._place.shown!r:.200}", error) from None
        if not there:
            raise self._absent()
        self._seen = time.monotonic()

    @property
    def _bucket(self) -> str:
        """The first part of a root without a slash before it: what no put makes by itself."""
        root = self._place.root
        return "" if root.startswith("/") or "://" in root else root.partition("/")[0]

    @property
    def _anchored(self) -> bool:
        """Whether the root or bucket is something that is there when no object is."""
        return self._place.publish != "never" and "://" not in self._place.root

    def _lost_anchor(self, verb: str) -> StoreError | None:
        """Return why misses are failures, if not objects are missing but what should hold them."""
        if not self._anchored or time.monotonic() - self._seen < _LOOK_AGAIN_S:
            return None
        try:
            if not self._calls.exists(self._bucket or self._place.root or "/"):
                return self._absent()
        except Exception as caught:  # noqa: BLE001 - as in `_each`
            return self._explained(verb, caught)
        self._seen = time.monotonic()
        return None

    def _unlisted(self) -> StoreError | None:
        """Return why a listing is empty, if not because nothing is there."""
        if self._anchored:
            return self._lost_anchor("list")
        try:
            self._calls.require_folder(self._place.root)
        except FileNotFoundError:
            return self._absent()
        except Exception as error:  # noqa: BLE001 - as in `_each`
            return self._explained("list", error)
        return None

    def _absent(self) -> StoreError:
        return StoreError(
            f"{self._place.shown!r:.200}: there is no {self._bucket or self._place.root!r}"
        )

    def _explained(self, doing: str, error: Exception) -> StoreError:
        return explain_error(doing, error, self._place.secrets)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"this fsspec store is closed: {self._place.shown!r}")
        if self._pid != os.getpid():
            raise StoreError(
                f"this fsspec store was opened by process {self._pid} and this is a fork of it: "
                "open it anew, by its `opener`"
            )


def _unasked(doing: str, silence: StoreError) -> StoreError:
    """Return the error of an item that was not asked for, as no answer came to one before it."""
    error = StoreError(f"{doing}: not asked, after {silence}")
    error.errno, error.retryable = silence.errno, silence.retryable
    return error


def open_url(url: StoreUrl) -> FsspecStore:
    """Open ``fsspec+PROTOCOL://...``, as docs/fsspec.md says."""
    return FsspecStore(open_place(url))
