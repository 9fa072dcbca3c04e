"""MemoryStore: objects in a dict of this process, for tests and trials. It outlives nothing."""

import threading
import time
from collections.abc import Iterator, Sequence

from unikv.backends.batch import Batch, item_bytes, short_object, span_bytes
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, Item, Outcome, Outcomes, Span, check_key


class MemoryStore:
    """A `unikv.store.Store` in memory. Every one is empty at first and shares nothing."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, float]] = {}  # bytes, and when they were put
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._objects)} objects)"

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store a copy of each object; see `unikv.store.Store.put`."""
        self._require_open()
        batch = Batch(len(items))
        for position, (key, buffers) in enumerate(items):
            try:
                check_key(key)
                size = item_bytes(buffers)
            except (KeyFormatError, StoreError) as error:
                batch.fail(position, f"put {key!r:.200}", error)
                continue
            with self._lock:
                found = self._objects.get(key)
                if not replace and found is not None and len(found[0]) == size:
                    batch.codes[position] = Outcome.EXISTED
                else:
                    self._objects[key] = (b"".join(buffers), time.time())
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill each span's views; see `unikv.store.Store.get`."""
        self._require_open()
        batch = Batch(len(spans))
        for position, span in enumerate(spans):
            try:
                if not self._read(span):
                    batch.codes[position] = Outcome.MISS
            except (KeyFormatError, StoreError) as error:
                batch.fail(position, f"get {span.key!r:.200}", error)
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`."""
        self._require_open()
        found = map(self._objects.get, keys)
        return [None if entry is None else len(entry[0]) for entry in found]

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object; see `unikv.store.Store.delete`."""
        self._require_open()
        batch = Batch(len(keys))
        for position, key in enumerate(keys):
            try:
                check_key(key)
            except KeyFormatError as error:
                batch.fail(position, f"delete {key!r:.200}", error)
                continue
            if self._objects.pop(key, None) is None:
                batch.codes[position] = Outcome.MISS
        return batch.outcomes()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects that were there at the call; see `unikv.store.Store.list`."""
        self._require_open()
        found = list(self._objects.items())
        return (
            Entry(key, len(data), mtime) for key, (data, mtime) in found if key.startswith(prefix)
        )

    def close(self) -> None:
        """Forget every object; see `unikv.store.Store.close`."""
        self._closed = True
        self._objects = {}

    def _read(self, span: Span) -> bool:
        """Copy the bytes of a span; return whether its object is there."""
        check_key(span.key)
        span_bytes(span)
        found = self._objects.get(span.key)
        if found is None:
            return False
        data = memoryview(found[0])
        if span.stop > data.nbytes:
            raise short_object(data.nbytes, span.start, span.stop)
        at = span.start
        for view in span.into:
            if view.nbytes:  # an empty view cannot be cast
                view.cast("B")[:] = data[at : at + view.nbytes]
                at += view.nbytes
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("this MemoryStore is closed")


def open_url(url: StoreUrl) -> MemoryStore:
    """Open ``memory://``: a new, empty store."""
    url.refuse_host()
    url.refuse_path()
    url.refuse_options_except()
    return MemoryStore()
