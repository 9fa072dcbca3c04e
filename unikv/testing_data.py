"""Test data: keys, contents and reads for tests of stores. It knows no promise."""

import hashlib
import secrets
from collections.abc import Sequence

from unikv.errors import KeyFormatError
from unikv.store import Entry, Outcome, Span, Store, check_key
from unikv.testing_checks import NotApplicable

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


class Keys:
    """Keys that nobody else uses, so that promises can be tried on a store that holds others.

    It remembers every key that it gave out, so that they can be removed.

    Args:
        alone: whether the store holds nothing else, nor will.
        whole: whether a listing of all that the store holds is short enough to be tried.
    """

    def __init__(self, *, alone: bool = True, whole: bool = True) -> None:
        self._alone = alone
        self._whole = whole
        self._salt = secrets.token_hex(8)
        self.given: set[str] = set()

    @property
    def near_prefix(self) -> str:
        """What all keys that `near` gives begin with, and no other key of the store."""
        return self._salt

    def page(self, name: object, suffix: str = "") -> str:
        """Return a key as an object of a page has it, the same for equal names."""
        return self._give(page_key(f"{self._salt} {name}", suffix))

    def near(self, name: object) -> str:
        """Return such a key whose page hash begins with `near_prefix`."""
        return self._give(self._salt + page_key(name)[len(self._salt) :])

    def text(self, start: str, end: str = "") -> str:
        """Return a key that is no page's and begins and ends so."""
        return self._give(f"{start}_{self._salt}{end}")

    def exact(self, *keys: str) -> list[str]:
        """Return those keys where the store holds nothing else, no keys where it does."""
        return [self._give(key) for key in keys] if self._alone else []

    def listed(self, store: Store, prefix: str = "") -> list[Entry]:
        """Return the listing of a prefix, without what others stored.

        Raises:
            AssertionError: it shows what is no object, or does not begin with the prefix.
            NotApplicable: the store holds too much for a listing of all.
        """
        if not (prefix or self._whole):
            raise NotApplicable("the store holds too much to list it all: try an empty one")
        found = []
        for entry in store.list(prefix):
            if not entry.key.startswith(prefix):
                raise AssertionError(f"list of {prefix!r} shows {entry.key!r:.200}")
            if entry.key in self.given:
                found.append(entry)
            elif self._alone:
                raise AssertionError(f"list shows {entry.key!r:.200}, which nobody stored")
            else:
                _require_key(entry.key)
        return found

    def _give(self, key: str) -> str:
        self.given.add(key)
        return key


def page_key(seed: object, suffix: str = "") -> str:
    """Return a key as an object has it: 64 hex digits and more, the same for equal seeds."""
    digest = hashlib.sha256(str(seed).encode()).hexdigest()
    return f"{digest}_{'5' * 32}_L0-15{suffix}"


def content(key: str, size: int, version: int = 0) -> bytes:
    """Return bytes that say which key, version and offset they are of, at every place."""
    return hashlib.shake_128(f"{key} {version}".encode()).digest(size)


def read(store: Store, key: str, start: int, stop: int) -> bytes | Outcome:
    """Return bytes of one object, or what became of the attempt."""
    data = bytearray(b"\xee" * (stop - start))
    (code,) = store.get([Span(key, start, stop, [memoryview(data)])]).codes
    return bytes(data) if code == OK else code


def views_of(data: bytearray, cuts: Sequence[int]) -> list[memoryview]:
    """Cut a buffer into views that end at ``cuts``."""
    view = memoryview(data)
    return [view[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]


def _require_key(key: str) -> None:
    try:
        check_key(key)
    except KeyFormatError as error:
        raise AssertionError(f"list shows {key!r:.200}, which is no key") from error
