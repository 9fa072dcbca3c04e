"""Test data: keys, contents and reads for tests of stores. It knows no promise."""

import hashlib
from collections.abc import Sequence

from unikv.store import Outcome, Span, Store

OK, EXISTED, MISS, FAILED = Outcome
HOSTILE_KEYS = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/x",
    ".hidden",
    "-x",
    "a\0b",
    "a\n",
    "é",
    "k" * 300,
)


def page_key(seed: object, suffix: str = "") -> str:
    """Return a key as an object has it: 64 hex digits and more, the same for equal seeds."""
    digest = hashlib.sha256(str(seed).encode()).hexdigest()
    return f"{digest}_{'5' * 32}_L0-15{suffix}"


def content(key: str, size: int, version: int = 0) -> bytes:
    """Return bytes that say which key and version they are of, at every place."""
    seed = hashlib.sha256(f"{key} {version}".encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def read(store: Store, key: str, start: int, stop: int) -> bytes | Outcome:
    """Return bytes of one object, or what became of the attempt."""
    data = bytearray(b"\xee" * (stop - start))
    (code,) = store.get([Span(key, start, stop, [memoryview(data)])]).codes
    return bytes(data) if code == OK else code


def views_of(data: bytearray, cuts: Sequence[int]) -> list[memoryview]:
    """Cut a buffer into views that end at ``cuts``."""
    view = memoryview(data)
    return [view[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
