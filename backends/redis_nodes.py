"""Nodes: which server holds a key, and the connections of one process to it. It asks for no data.

A cluster's map of slots is learnt from its nodes, and learnt anew once it was seen to be wrong.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias, cast

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from unikv.backends.redis_errors import Refusal, failure, lost, refused
from unikv.backends.redis_pool import Pool
from unikv.backends.redis_url import Node, RedisPlace
from unikv.backends.redis_wire import Wire
from unikv.backends.url import is_host
from unikv.errors import StoreError

_CLUSTER_SLOTS = b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"

Slots: TypeAlias = list[Node | None]


class Nodes:
    """The servers of a place as one process sees them; a forked one makes its own."""

    def __init__(self, place: RedisPlace) -> None:
        self.place = place
        self.has_no_touch = True  # until a server says that it has no CLIENT NO-TOUCH
        self._pools: dict[Node, Pool] = {}
        self._slots: Slots = []
        self._stale = True
        self._failed: set[Node] = set()  # since the map was read
        self._lock = threading.Lock()
        self._closed = False

    def check(self) -> None:
        """Raise `StoreError` unless a server answers and lets us in."""
        if self.place.cluster:
            self._map()
        else:
            self.release(self.place.node, self.acquire(self.place.node))

    def locate(self, keys: Sequence[bytes]) -> Sequence[Node | None]:
        """Return the server of each key, None where the cluster has none for its slot now.

        Raises:
            StoreError: no node of the cluster tells where its slots are.
        """
        if not self.place.cluster:
            return [self.place.node] * len(keys)
        slots = self._map()
        return [slots[key_slot(key)] for key in keys]

    def masters(self) -> list[Node]:
        """Return the servers that hold all keys together."""
        if not self.place.cluster:
            return [self.place.node]
        slots = self._map()
        if None in slots:
            raise failure(f"{self.place}: a slot has no node", retryable=True)
        return sorted(set(cast("list[Node]", slots)))

    def moved(self, key: bytes, node: Node) -> None:
        """Learn that a key's slot is at another node; the rest of the map may be old as well."""
        with self._lock:
            if self._slots:
                self._slots[key_slot(key)] = node
            self._stale = True

    def failed(self, node: Node) -> None:
        """Learn that a node did not answer: close what is open to it, and look for its heir."""
        self._failed.add(node)
        self._stale = True
        self._pool(node).drop_idle()

    def acquire(self, node: Node) -> Wire:
        """Return a connection to a node; see `Pool.acquire`."""
        return self._pool(node).acquire()

    def release(self, node: Node, wire: Wire) -> None:
        """Take a connection back that is in step."""
        self._pool(node).release(wire)

    def discard(self, node: Node, wire: Wire) -> None:
        """Close a connection that may be out of step."""
        self._pool(node).discard(wire)

    def ask(self, node: Node, command: bytes) -> object:
        """Ask one node something that is about no key; return its reply, refusals among them.

        Raises:
            StoreError: it does not answer.
        """
        wire = self.acquire(node)
        try:
            wire.send([command])
            answer = wire.reply()
        except OSError as error:
            self.discard(node, wire)
            raise lost(error, node, self.place.timeout) from None
        except BaseException:
            self.discard(node, wire)
            raise
        self.release(node, wire)
        return answer

    def close(self) -> None:
        """Close all connections; those in use when they come back."""
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def _pool(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            pool = self._pools.setdefault(node, Pool(self.place, node))
            if self._closed:
                pool.close()
        return pool

    def _map(self) -> Slots:
        """Return who serves each slot, read anew if need be."""
        with self._lock:
            if self._stale or not self._slots:
                try:
                    self._slots = self._read_map()
                except StoreError:
                    if not self._slots:
                        raise  # an old map is better than none: its nodes redirect
                else:
                    self._stale = False
                    self._failed.clear()
            return self._slots

    def _read_map(self) -> Slots:
        """Ask one node after the other, those that failed last, within the connect timeout."""
        known = {node for node in self._slots if node} | {self.place.node}
        until = time.monotonic() + self.place.connect_timeout
        errors: list[StoreError] = []
        for node in sorted(known, key=lambda node: (node in self._failed, node)):
            if errors and time.monotonic() > until:
                break
            try:
                return _slots(self.ask(node, _CLUSTER_SLOTS), node)
            except StoreError as error:
                errors.append(error)
        raise errors[0]


def _slots(answer: object, asked: Node) -> Slots:
    """Return who serves each slot by a server's answer to CLUSTER SLOTS."""
    if isinstance(answer, Refusal):
        raise refused(answer, f"CLUSTER SLOTS of {asked} (cluster=1 is for clusters)")
    slots: Slots = [None] * REDIS_CLUSTER_HASH_SLOTS
    try:
        for first, last, master, *_ in cast("Iterable[tuple[int, int, tuple[bytes, int]]]", answer):
            node = _node((master[0] or b"").decode("ascii"), int(master[1]), asked)
            if not 0 <= first <= last < REDIS_CLUSTER_HASH_SLOTS:
                text = f"slots {first} to {last}: want 0 to {REDIS_CLUSTER_HASH_SLOTS - 1}"
                raise failure(f"{asked}: an answer to CLUSTER SLOTS with {text}")
            slots[first : last + 1] = [node] * (last + 1 - first)
    except (AttributeError, IndexError, TypeError, ValueError):
        raise failure(f"{asked}: an answer to CLUSTER SLOTS that is none") from None
    return slots


def _node(host: str, port: int, asked: Node) -> Node:
    """Return the node that a server told of: no path, which would be a socket of this machine.

    Raises:
        ValueError: it is none.
    """
    if host in {"", "?"}:  # one that does not know its own name is where we found it
        host = asked.host
    if not is_host(host) or not 0 < port < 2**16:
        raise ValueError(f"{host!r:.100}, port {port}")
    return Node(host, port)


def target(refusal: Refusal, asked: Node) -> Node | None:
    """Return the node that a MOVED or ASK reply names, None if it names none."""
    with suppress(ValueError):
        _, address = refusal.text.split(" ")
        host, _, port = address.rpartition(":")
        return _node(host, int(port), asked)
    return None
