"""Pool: the connections of one process to one server, bounded. It knows no keys and no cluster."""

import threading
from typing import Protocol, cast

import redis.exceptions as theirs
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from unikv.backends.redis_errors import Refusal, failure, not_connected, refused
from unikv.backends.redis_url import Node, RedisPlace
from unikv.backends.redis_wire import Connection as Made
from unikv.backends.redis_wire import Wire

_PING = b"*1\r\n$4\r\nPING\r\n"


class Pool:
    """Connections to one node: at most ``place.connections``, the last used first."""

    __slots__ = ("_closed", "_free", "_idle", "_node", "_place")

    def __init__(self, place: RedisPlace, node: Node) -> None:
        self._place = place
        self._node = node
        self._idle: list[Wire] = []
        self._free = threading.Semaphore(place.connections)
        self._closed = False

    def acquire(self) -> Wire:
        """Return a connection that nobody else uses; give it to `release` or `discard` at the end.

        Raises:
            StoreError: none can be made, or all are in use for longer than the timeout.
        """
        place = self._place
        if not self._free.acquire(timeout=place.timeout):
            raise failure(
                f"{self._node}: all {place.connections} connections in use for "
                f"{place.timeout:g} s (connections= in the URL sets how many)",
                retryable=True,
            )
        try:
            if self._closed:
                raise failure(f"{self._node}: the store is closed")  # noqa: TRY301 - one way out
            while self._idle:
                try:
                    wire = self._idle.pop()
                except IndexError:  # another thread was faster
                    break
                if wire.is_idle:
                    return wire
                wire.close()  # its server is gone, or it said what nobody asked for
            return connect(place, self._node)
        except BaseException:
            self._free.release()
            raise

    def release(self, wire: Wire) -> None:
        """Take a connection back that has read all its replies."""
        self._idle.append(wire)
        if self._closed:
            self.drop_idle()
        self._free.release()

    def discard(self, wire: Wire) -> None:
        """Close a connection that may be out of step."""
        wire.close()
        self._free.release()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                break

    def close(self) -> None:
        """Close the connections that nobody uses now, the others when they are released."""
        self._closed = True
        self.drop_idle()


class _Connection(Made, Protocol):
    """A connection of redis-py, whose own types say less."""

    def connect(self) -> object:
        """Connect and log in."""


class _UnixConnection(UnixDomainSocketConnection):
    """redis-py reports the port of a connection that timed out, and has none for a Unix socket."""

    port = 0


def connect(place: RedisPlace, node: Node) -> Wire:
    """Connect, log in, and see that the server answers, each within the connect timeout.

    Raises:
        StoreError: it cannot be done; whether it may pass is said.
    """
    try:
        connection = _connection(place, node)
    except OSError as error:  # redis-py opens files of its own for that
        raise not_connected(error, node, place) from None
    try:
        connection.connect()
        wire = Wire(connection)
        wire.send([_PING])
        answer = wire.reply()
        wire.set_timeout(place.timeout)
    except (theirs.RedisError, OSError) as error:
        connection.disconnect()
        raise not_connected(error, node, place) from None
    except BaseException:
        connection.disconnect()
        raise
    if isinstance(answer, Refusal) and answer.code != "NOPERM":  # who may not ping is there, too
        wire.close()
        raise refused(answer, f"connect to {node}")
    return wire


def _connection(place: RedisPlace, node: Node) -> _Connection:
    """Return a connection of redis-py that is not made yet, and tries once."""
    options: dict[str, object] = {
        "db": place.db,
        "username": place.username,
        "password": place.password,
        "socket_connect_timeout": place.connect_timeout,
        "socket_timeout": place.connect_timeout,  # of handshakes: a frozen server accepts, too
        "protocol": 2,  # the third has messages that nobody asked for
    }
    kind: type = Connection
    if not node.port:
        kind = _UnixConnection
        options["path"] = node.host
    else:
        options |= {"host": node.host, "port": node.port}
    if place.tls:
        kind = SSLConnection
        options |= {f"ssl_{name}": value for name, value in place.tls._asdict().items()}
    return cast("_Connection", kind(**options))
