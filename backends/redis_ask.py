"""Talk: a batch's commands to one server, a bounded part of them on its way. It knows none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from unikv.backends.redis_errors import Refusal, lost
from unikv.backends.redis_nodes import Nodes
from unikv.backends.redis_url import Node
from unikv.errors import StoreError
from unikv.store import Buffer

if TYPE_CHECKING:
    from unikv.backends.redis_wire import Wire

REPLY_BYTES = 1 << 20
"""How much is asked for at once: what a server answers ahead leaves its processor's cache."""
VALUE_BYTES = 4 << 20
"""How much is sent at once, so that a server has the next object at hand."""

_ASK_BYTES = 1024
"""What a command counts for beside its data: so that there is a bound on small ones, too."""

Reply: TypeAlias = int | bytes | Refusal | StoreError | None

_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_NO_TOUCH = {
    True: b"*3\r\n$6\r\nCLIENT\r\n$8\r\nNO-TOUCH\r\n$2\r\nON\r\n",
    False: b"*3\r\n$6\r\nCLIENT\r\n$8\r\nNO-TOUCH\r\n$3\r\nOFF\r\n",
}
_LEAVE = {"CLUSTERDOWN", "MASTERDOWN", "READONLY"}  # look for another server, or connect anew


class Ask(NamedTuple):
    """One command about one key, packed; with ``into``, its reply is bytes that go there."""

    key: bytes
    pieces: Sequence[Buffer]
    data: int = 0  # bytes of an object that go with it or come back
    into: Sequence[memoryview] | None = None


def packed(*words: bytes) -> bytes:
    """Return a command as it is sent."""
    parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)]
    return b"".join(parts)


class Asked(NamedTuple):
    """Commands and the replies to them so far, by position; ``asking`` are sent on for once."""

    asks: Sequence[Ask]
    replies: list[Reply]
    asking: set[int]
    quiet: bool  # whether the servers are to leave the keys' recency as it is
    flight: int  # bytes on their way to or from one server


class Talk:
    """One node's part of a batch. `finish` or `abandon` ends it."""

    __slots__ = (
        "_batch",
        "_due",
        "_flight",
        "_leave",
        "_next",
        "_node",
        "_nodes",
        "_positions",
        "_switched",
        "_wire",
    )

    def __init__(self, nodes: Nodes, node: Node, batch: Asked, positions: Sequence[int]) -> None:
        self._nodes = nodes
        self._node = node
        self._batch = batch
        self._positions = positions
        self._next = 0  # the first that is not sent
        self._due = 0  # the first whose reply was not read
        self._flight = 0  # bytes between the two
        self._leave = False
        self._switched = False  # whether CLIENT NO-TOUCH was sent, and its reply not read
        self._wire: Wire | None = nodes.acquire(node)

    @property
    def has_more(self) -> bool:
        """Whether a reply is still to come."""
        return self._due < len(self._positions)

    def send(self) -> None:
        """Send as much as there is room for."""
        asks, _, asking, quiet, flight = self._batch
        wire = self._wire
        assert wire is not None
        pieces: list[Buffer] = []
        if self._next == 0 and wire.quiet != quiet and (wire.quiet or self._nodes.has_no_touch):
            self._switched = True
            pieces.append(_NO_TOUCH[quiet])
        while self._next < len(self._positions) and self._flight < flight:
            position = self._positions[self._next]
            if position in asking:
                pieces.append(_ASKING)
            pieces += asks[position].pieces
            self._flight += _ASK_BYTES + asks[position].data
            self._next += 1
        try:
            wire.send(pieces)
        except OSError as error:
            self._lose(error)

    def read(self) -> None:
        """Read replies until half of the room is free, or all if nothing is left to send."""
        wire = self._wire
        if wire is None:
            return
        asks, replies, asking, quiet, flight = self._batch
        status = wire.reply if asks[self._positions[0]].into is None else wire.status
        until = flight // 2 if self._next < len(self._positions) else -1
        try:
            if self._switched:
                self._switched = False
                if isinstance(status(), Refusal):
                    self._nodes.has_no_touch = False
                else:
                    wire.quiet = quiet
            while self._due < self._next and self._flight > until:
                position = self._positions[self._due]
                if position in asking:
                    status()
                _, _, data, into = asks[position]
                reply = wire.reply() if into is None else wire.bytes_into(into, data)
                replies[position] = cast("Reply", reply)
                self._flight -= _ASK_BYTES + data
                self._due += 1
                if isinstance(reply, Refusal) and reply.code in _LEAVE:
                    self._leave = True
        except OSError as error:
            self._lose(error)

    def finish(self) -> None:
        """Give the connection back: every reply was read."""
        wire, self._wire = self._wire, None
        if wire is None:
            return
        if self._leave:
            self._nodes.failed(self._node)
            self._nodes.discard(self._node, wire)
        else:
            self._nodes.release(self._node, wire)

    def abandon(self) -> None:
        """Close the connection: nobody knows which replies are still to come."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._nodes.discard(self._node, wire)

    def _lose(self, error: OSError) -> None:
        """Fail what has no reply yet; what it did at the server, nobody knows."""
        failed = lost(error, self._node, self._nodes.place.timeout)
        for position in self._positions[self._due :]:
            self._batch.replies[position] = failed
        self._due = self._next = len(self._positions)
        self.abandon()
        self._nodes.failed(self._node)
