"""RedisStore: objects as strings of Redis, Valkey or a cluster of them. It knows no KV."""

import os
from collections.abc import Iterator, Sequence

from unikv.backends.batch import Batch, raise_outage
from unikv.backends.redis_ask import Ask, packed
from unikv.backends.redis_errors import Refusal, reason
from unikv.backends.redis_exchange import Exchange
from unikv.backends.redis_list import entries
from unikv.backends.redis_nodes import Nodes
from unikv.backends.redis_read import Reader
from unikv.backends.redis_sizes import sizes_of
from unikv.backends.redis_tls import check_files
from unikv.backends.redis_url import RedisPlace, parse_place
from unikv.backends.redis_write import Writer
from unikv.backends.url import StoreUrl
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span, check_key


class RedisStore:
    """A `unikv.store.Store` on a Redis server or cluster. Believes nothing it saw before.

    It never tries twice: a server that is away costs each call one timeout at most, and the next
    call connects anew. A connection that broke off is closed, never used again. A forked process
    makes its own connections and leaves its parent's alone.

    Args:
        place: where the server is, and which keys are ours.

    Raises:
        StoreError: the server cannot be reached, or does not know us.
    """

    def __init__(self, place: RedisPlace) -> None:
        self._place = place
        self._closed = False
        if place.tls is not None:
            check_files(place.tls, place)
        self._exchanges: dict[int, Exchange] = {}  # by process
        try:
            self._exchange().nodes.check()
        except StoreError:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"RedisStore('{self._place}')"

    @property
    def opener(self) -> Opener:
        """How another process opens the same store; it holds the password."""
        return Opener("unikv.registry", "open_store", [self._place.secret_url])

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store each object as a string; see `unikv.store.Store.put`."""
        batch = Batch(len(items))
        Writer(self._exchange(), items, batch).write(replace=replace)
        return batch.outcomes()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Read into each span's views, from the socket; see `unikv.store.Store.get`."""
        batch = Batch(len(spans))
        Reader(self._exchange(), spans, batch).read()
        return batch.outcomes()

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return each object's size; see `unikv.store.Store.stat`.

        A server that knows how (CLIENT NO-TOUCH, since Redis 7.2) does not count it as use.

        Raises:
            StoreError: the server answered for no key, or refused to.
        """
        exchange = self._exchange()
        sizes: list[int | None] = [None] * len(keys)
        good = [position for position, key in enumerate(keys) if not _flaw(key)]
        found = sizes_of(exchange, [exchange.name(keys[p]) for p in good], quiet=True)
        told = [size for size in found if not _is_other(size)]
        failed = [size for size in told if not (size is None or isinstance(size, int))]
        raise_outage(len(told), [reason(size, f"STRLEN of {len(good)} keys") for size in failed])
        for position, size in zip(good, found, strict=True):
            if isinstance(size, int):
                sizes[position] = size
        return sizes

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove each object; see `unikv.store.Store.delete`."""
        exchange = self._exchange()
        batch = Batch(len(keys))
        asks: list[Ask] = []
        good: list[int] = []
        for position, key in enumerate(keys):
            if flaw := _flaw(key):
                batch.fail(position, f"delete {key!r:.200}", flaw)
                continue
            name = exchange.name(key)
            asks.append(Ask(name, [packed(b"UNLINK", name)]))
            good.append(position)
        for position, reply in zip(good, exchange.ask(asks), strict=True):
            if reply == 0:
                batch.codes[position] = Outcome.MISS
            elif reply != 1:
                batch.fail(position, f"delete {keys[position]!r}", reason(reply, "UNLINK"))
        return batch.outcomes()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Stream the objects, server by server; see `unikv.store.Store.list`."""
        return entries(self._exchange(), prefix)

    def close(self) -> None:
        """Close the connections; see `unikv.store.Store.close`."""
        self._closed = True
        exchange = self._exchanges.pop(os.getpid(), None)
        if exchange is not None:
            exchange.nodes.close()

    def _exchange(self) -> Exchange:
        """Return this process's way to the servers.

        What belongs to a parent is not even locked: whoever held the lock is not in this process.
        """
        if self._closed:
            raise StoreError(f"this store is closed: {self._place}")
        process = os.getpid()
        exchange = self._exchanges.get(process)
        if exchange is None:
            exchange = self._exchanges.setdefault(process, Exchange(Nodes(self._place)))
            for parent in [pid for pid in self._exchanges if pid != process]:
                self._exchanges.pop(parent, None)  # its connections close here, and stay there
        return exchange


def open_url(url: StoreUrl) -> RedisStore:
    """Open ``redis://host:port/db``, ``rediss://host:port/db`` or ``unix:///socket``."""
    return RedisStore(parse_place(url))


def _is_other(size: object) -> bool:
    """Return whether what has a key's name is no object: that says nothing of other keys."""
    return isinstance(size, Refusal) and size.code == "WRONGTYPE"


def _flaw(key: str) -> KeyFormatError | None:
    """Return what is wrong with a key, if anything is."""
    try:
        check_key(key)
    except KeyFormatError as error:
        return error
    return None
