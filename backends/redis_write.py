"""Writer: objects by SET, sent from the caller's buffers. It knows no connection.

A look comes first, so that what is there is not sent; SET NX then leaves it to the server who of
several writers was first. Of writers that replace an object of a wrong size at once, each stores
its own and the last one stays.
"""

from collections.abc import Mapping, Sequence

from unikv.backends.batch import Batch, item_bytes
from unikv.backends.redis_ask import VALUE_BYTES, Ask
from unikv.backends.redis_errors import Refusal, failure, reason
from unikv.backends.redis_exchange import Exchange
from unikv.backends.redis_sizes import OBJECT_BYTES, sizes_of
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Item, Outcome, check_key

_NX = b"$2\r\nNX\r\n"
_TRIES = 3  # of an object that comes and goes meanwhile


class Writer:
    """Stores the items of one call."""

    __slots__ = ("_batch", "_exchange", "_expiry", "_items", "_names", "_sizes")

    def __init__(self, exchange: Exchange, items: Sequence[Item], batch: Batch) -> None:
        self._exchange = exchange
        self._items = items
        self._batch = batch
        self._names: dict[int, bytes] = {}
        self._sizes: dict[int, int] = {}
        ttl = exchange.nodes.place.ttl
        self._expiry = b"" if ttl is None else b"$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(str(ttl)), ttl)

    def write(self, *, replace: bool) -> None:
        """Store each item and note what became of it."""
        turns: list[list[int]] = []  # a key that comes again finds what it stored before
        seen: dict[str, int] = {}
        for position, (key, buffers) in enumerate(self._items):
            try:
                check_key(key)
                size = item_bytes(buffers)
            except (KeyFormatError, StoreError) as error:
                self._fail(position, error)
                continue
            if size > OBJECT_BYTES:
                large = f"{size} bytes: a string of Redis holds {OBJECT_BYTES} at most"
                self._fail(position, StoreError(large))
                continue
            self._names[position] = self._exchange.name(key)
            self._sizes[position] = size
            count = seen[key] = seen.get(key, -1) + 1
            if count == len(turns):
                turns.append([])
            turns[count].append(position)
        earlier: dict[str, int] = {}
        for turn in turns:
            positions = [n for n in turn if not self._fails_again(n, earlier)]
            earlier.update((self._items[n][0], n) for n in turn)
            if replace:
                self._set(positions)
            else:
                self._set_absent(positions)

    def _fails_again(self, position: int, earlier: Mapping[str, int]) -> bool:
        """Fail an item as its key was a moment ago: a dead server costs a call one timeout."""
        before = earlier.get(self._items[position][0])
        error = None if before is None else self._batch.errors.get(before)
        if error is None or not error.retryable:
            return False
        self._batch.codes[position] = Outcome.FAILED
        self._batch.errors[position] = error
        return True

    def _set_absent(self, positions: Sequence[int]) -> None:
        """Store what is not there, or there in a wrong size."""
        for _ in range(_TRIES):
            absent, wrong = self._look(positions)
            self._set(wrong)
            positions = self._set(absent, _NX)
            if not positions:
                return
        for position in positions:
            self._fail(position, failure("the object comes and goes", retryable=True))

    def _look(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return what is not there, and what is in a wrong size; note what is there and right."""
        absent: list[int] = []
        wrong: list[int] = []
        sizes = sizes_of(self._exchange, [self._names[position] for position in positions])
        for position, size in zip(positions, sizes, strict=True):
            if size is None:
                absent.append(position)
            elif size == self._sizes[position]:
                self._batch.codes[position] = Outcome.EXISTED
            elif isinstance(size, int) or (isinstance(size, Refusal) and size.code == "WRONGTYPE"):
                wrong.append(position)
            else:
                self._fail(position, reason(size, "STRLEN"))
        return absent, wrong

    def _set(self, positions: Sequence[int], option: bytes = b"") -> list[int]:
        """Send objects; return those that the server did not take since they were there."""
        if not positions:
            return []
        there: list[int] = []
        asks = [self._ask(position, option) for position in positions]
        replies = self._exchange.ask(asks, flight=VALUE_BYTES)
        for position, reply in zip(positions, replies, strict=True):
            if reply is None:
                there.append(position)
            elif reply != b"OK":
                self._fail(position, reason(reply, "SET"))
        return there

    def _ask(self, position: int, option: bytes) -> Ask:
        name, size = self._names[position], self._sizes[position]
        words = 3 + (option != b"") + 2 * (self._expiry != b"")
        head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (words, len(name), name, size)
        tail = b"\r\n" + option + self._expiry
        _, buffers = self._items[position]
        return Ask(name, [head, *buffers, tail], size)

    def _fail(self, position: int, error: Exception) -> None:
        key, _ = self._items[position]
        self._batch.fail(position, f"put {key!r:.200}", error)
