"""Reading: the bytes of stored objects, never more than was agreed. It knows no format.

Sizes that a store tells are as little trusted as bytes: a sparse file may claim any.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Outcome, Span, Store

OBJECT_LIMIT = 1 << 30
"""Bytes of the largest object that is read whole."""

BATCH_BYTES = 32 << 20
"""Bytes read in one batch, unless one object alone has more."""

_SECRET_LIMIT = 4096


class Source(NamedTuple):
    """One object: what to call it, its size, and how to read bytes ``start..stop`` of it."""

    shown: str
    size: int
    read: Callable[[int, int], memoryview]


class Wanted(NamedTuple):
    """An object to read whole, of a size that its namespace asks for."""

    key: str
    size: int


def stored_object(store: Store, key: str, shown: str) -> Source:
    """Return the object under ``key``.

    Raises:
        StoreError: there is none, or the store does not tell its size.
    """
    size = store.stat([key])[0]
    if size is None:
        raise StoreError(f"{shown} holds no object {key}")
    if size == UNKNOWN_SIZE:
        sizes = [entry.size for entry in store.list(key) if entry.key == key]
        if not sizes or sizes[0] == UNKNOWN_SIZE:
            raise StoreError(f"{shown} does not tell the size of object {key}")
        size = sizes[0]

    def read(start: int, stop: int) -> memoryview:
        buffer = memoryview(bytearray(stop - start))
        outcomes = store.get([Span(key, start, stop, [buffer])])
        if outcomes.codes[0] is not Outcome.OK:
            raise StoreError(f"get {key}: {outcomes.errors.get(0) or 'it is gone'}")
        return buffer

    return Source(shown, size, read)


def object_file(path: Path) -> Source:
    """Return the object that lies alone in a file.

    Raises:
        StoreError: it is no regular file or cannot be read.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):  # a pipe would wait for ever
        raise StoreError(f"{path} is no regular file: want the file of one object")

    def read(start: int, stop: int) -> memoryview:
        buffer = memoryview(bytearray(stop - start))
        try:
            with path.open("rb") as file:
                file.seek(start)
                filled = file.readinto(buffer)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        return buffer[:filled]

    return Source(str(path), found.st_size, read)


def read_batches(
    store: Store, wanted: Sequence[Wanted]
) -> Iterator[tuple[int, memoryview | str | None]]:
    """Read objects, a bounded number of bytes at a time.

    Yields:
        Each position in ``wanted`` with the object's bytes, or why they could not be read, or
        None where the object is gone. The bytes are good until the next step.
    """
    first = 0
    while first < len(wanted):
        stop, total = first + 1, wanted[first].size
        while stop < len(wanted) and total + wanted[stop].size <= BATCH_BYTES:
            total += wanted[stop].size
            stop += 1
        memory, at = memoryview(bytearray(total)), 0
        spans = []
        for key, size in wanted[first:stop]:
            spans.append(Span(key, 0, size, [memory[at : at + size]]))
            at += size
        outcomes = store.get(spans)
        for i, (span, code) in enumerate(zip(spans, outcomes.codes, strict=True)):
            if code is Outcome.OK:
                yield first + i, span.into[0]
            else:
                yield first + i, None if code is Outcome.MISS else str(outcomes.errors.get(i))
        first = stop


def read_secret(path: Path) -> bytes:
    """Return all bytes of a small file, line ends included.

    Raises:
        StoreError: it cannot be read, or holds more than 4,096 bytes.
    """
    try:
        with path.open("rb") as file:
            secret = file.read(_SECRET_LIMIT + 1)
    except OSError as error:
        raise StoreError(f"tag key file {path}: {error.strerror}") from error
    if len(secret) > _SECRET_LIMIT:
        raise StoreError(f"tag key file {path}: more than {_SECRET_LIMIT} bytes, want a short key")
    return secret


def folder_exists(path: str) -> bool:
    """Tell whether ``path`` is a folder, so that looking at a store never makes one."""
    return os.path.isdir(path)  # noqa: PTH112 - a Path cannot hold what a URL may
