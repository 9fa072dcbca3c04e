"""Store: six calls on many keys, all that a backend promises. It knows no KV and no format."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from unikv.errors import KeyFormatError, StoreError

Buffer: TypeAlias = bytes | bytearray | memoryview

UNKNOWN_SIZE = -1
"""What `Store.stat` answers for a key that exists where asking for its size costs too much."""

KEY_BYTES = 160
_KEY = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,159}\Z")


class Outcome(IntEnum):
    """What became of one item of a batch."""

    OK = 0  # stored, read or deleted
    EXISTED = 1  # put: the key is there already, with the same size
    MISS = 2  # get, delete: there is no such key
    FAILED = 3  # see `Outcomes.errors`


class Item(NamedTuple):
    """An object to store: its buffers, joined in order, are its bytes."""

    key: str
    buffers: Sequence[Buffer]

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return sum(memoryview(buffer).nbytes for buffer in self.buffers)


class Span(NamedTuple):
    """Bytes ``start..stop`` (half-open) of an object, to be scattered in order over ``into``.

    ``into`` holds writable contiguous views of bytes whose sizes sum to ``stop - start``.
    """

    key: str
    start: int
    stop: int
    into: Sequence[memoryview]


class Entry(NamedTuple):
    """One stored object as `Store.list` shows it."""

    key: str
    size: int
    mtime: float | None  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One `Outcome` for each item of a batch, and the errors of the failed ones by position."""

    codes: Sequence[Outcome]
    errors: Mapping[int, StoreError] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every item was stored, read, deleted or there already."""
        return all(code <= Outcome.EXISTED for code in self.codes)


class Opener(NamedTuple):
    """How another process opens the same store: ``module.function(*arguments)``.

    A store that can be opened so has an attribute ``opener`` of this type. The arguments are what
    JSON holds, and may be secret: an opener is never printed.
    """

    module: str
    function: str
    arguments: Sequence[object]

    def __repr__(self) -> str:
        """Return the function alone: a URL in the arguments may hold a password."""
        return f"Opener({self.module}.{self.function})"


class Records(Protocol):
    """What is asked of a store beside moving KV: sizes, and small records read and put whole.

    A `Store` is one; so is a client's call, which answers within its deadline.
    """

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object whole or not at all: a reader never sees a part of one.

        If-absent unless ``replace``: a key that holds an object of the same size is EXISTED and
        its bytes stay; one of another size is replaced, since it cannot be the object meant.
        """
        ...

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill each span's views with its bytes. OK means all of them; a shorter object is FAILED.

        The views of a span that is not OK hold no particular bytes.
        """
        ...

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size in bytes, None where there is none (or it cannot be told).

        Raises `StoreError` where nothing could be asked: a store that is away is not empty.
        """
        ...


class Store(Records, Protocol):
    """Holds objects under text keys. Every call takes many keys; one bad key never fails its batch.

    A key is 1 to 160 characters of ``[0-9A-Za-z_.-]`` and begins with a letter, digit or
    underscore. Calls may come from several threads and processes at once.

    Optional: ``opener`` (see `Opener`); ``costly_stat``, true where each size is a request over a
    network, so that `stat` of many keys is to be avoided; ``register(buffer)``, called
    once with the memory that spans and items will name; ``sweep()``, which removes what dead
    writers left; ``refresh(keys)``, where what was requested last is kept: a save found these
    there; and, in the class that defines `get` and `put`, so that nobody who overrides or
    wraps these is passed by: ``get_in_turn(spans, came)``, a `get` that reads one span after the
    other and calls ``came(position)`` as one is filled; ``put_in_turn(items, replace=)``, a `put`
    of an iterable that stores each item before it asks for the next.
    """

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object; MISS where there was none."""
        ...

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects whose key begins with ``prefix``, in no particular order.

        Objects that come or go meanwhile may or may not show. Raises `StoreError` where the
        backend cannot list.
        """
        ...

    def close(self) -> None:
        """Release what the store holds; later calls raise `StoreError`. Closing twice is fine."""
        ...


def check_key(key: str) -> None:
    """Raise `KeyFormatError` unless ``key`` is one that every store can hold."""
    if not _KEY.match(key):
        raise KeyFormatError(
            f"store key {key!r:.200}: want 1 to {KEY_BYTES} characters of [0-9A-Za-z_.-], "
            "beginning with a letter, digit or underscore"
        )


def find_in_turn(store: Store, verb: str) -> Callable[..., Outcomes] | None:
    """Return a store's ``get_in_turn`` or ``put_in_turn``, None if it has none; see `Store`."""
    if verb in getattr(store, "__dict__", ()):
        return None
    home = next((one for one in type(store).__mro__ if verb in vars(one)), object)
    return getattr(store, f"{verb}_in_turn") if f"{verb}_in_turn" in vars(home) else None
