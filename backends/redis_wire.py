"""Wire: one connection to one server; sends gathered pieces, reads replies. It knows no keys.

redis-py connects and logs in; from then on the socket is read here, so that the bytes of a range go
from the kernel into the caller's memory. Other replies are hiredis's.
"""

import math
import select
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Protocol, cast

import hiredis

from unikv.backends.redis_errors import OutOfStep, Refusal
from unikv.backends.vector import IOV_MAX
from unikv.store import Buffer

BUFFER = 65536
_SMALL = 4096  # bytes of a piece that cost less to copy than to send by itself
_TLS_STEP = 1 << 20  # bytes of one send: each has the whole timeout for itself
_SMALL_REPLY = 16 << 20  # bytes; the largest, a map of a cluster's slots, takes one or two
_NOT_YET = object()


class Connection(Protocol):
    """What is wanted of a connection of redis-py, once it is made."""

    _sock: socket.socket

    def disconnect(self) -> object:
        """Close the socket."""


class Wire:
    """A connection that is logged in. Whoever sent a command must read its reply.

    After any exception it is out of step and must be closed, never used again: the next reply
    would be the answer to somebody else's question.
    """

    __slots__ = (
        "_buffer",
        "_connection",
        "_hi",
        "_lo",
        "_poll",
        "_replies",
        "_sock",
        "_view",
        "quiet",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sock = connection._sock  # noqa: SLF001 - there is no other way to read into memory
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._lo = self._hi = 0  # what is in the buffer and not read
        self._replies = hiredis.Reader(
            protocolError=OutOfStep, replyError=Refusal, notEnoughData=_NOT_YET
        )
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self.quiet = False  # whether the server leaves recency as it is (CLIENT NO-TOUCH)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be read: neither an end nor a reply that nobody waits for."""
        unread = self._lo != self._hi or self._replies.has_data()
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        return not (unread or pending or self._poll.poll(0))

    def send(self, pieces: Iterable[Buffer]) -> None:
        """Send pieces one behind the other; only small ones are joined, none is kept."""
        if isinstance(self._sock, ssl.SSLSocket):
            for piece in _joined(pieces):
                view = memoryview(piece).cast("B")
                while view:
                    view = view[self._sock.send(view[:_TLS_STEP]) :]
            return
        rest = list(_joined(pieces))
        first = 0
        while first < len(rest):
            sent = self._sock.sendmsg(rest[first : first + IOV_MAX])
            while first < len(rest) and sent >= (size := memoryview(rest[first]).nbytes):
                sent -= size
                first += 1
            if sent:
                rest[first] = memoryview(rest[first]).cast("B")[sent:]

    def reply(self) -> object:
        """Read a reply of any kind that is small, within the timeout once it has begun."""
        fed, until = 0, math.inf
        while (reply := self._parsed()) is _NOT_YET:
            if self._lo == self._hi:
                if fed and until == math.inf:
                    until = monotonic() + (self._sock.gettimeout() or math.inf)
                elif monotonic() > until:
                    raise TimeoutError("a reply came in part")
                if fed > _SMALL_REPLY:
                    raise OutOfStep(f"a reply of more than {_SMALL_REPLY} bytes")
                self._fill()
            fed += self._hi - self._lo
            self._replies.feed(cast("bytes", self._buffer), self._lo, self._hi - self._lo)
            self._lo = self._hi
        return reply

    def _parsed(self) -> object:
        """Return the next reply of what was fed, `_NOT_YET` if there is none whole."""
        try:
            return cast("object", self._replies.gets(False))  # noqa: FBT003 - hiredis has no names
        except OutOfStep:
            raise
        except Exception as error:  # noqa: BLE001 - of a length that no memory holds, of map keys
            raise OutOfStep(f"a reply that is none ({type(error).__name__})") from None

    def status(self) -> Refusal | None:
        """Read a reply that is one line: all is well, or it is refused."""
        line = self._line()
        if line[:1] == b"-":
            return Refusal(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"+":
            raise OutOfStep("a line was due")
        return None

    def bytes_into(self, views: Sequence[memoryview], size: int) -> int | Refusal:
        """Read a reply of at most ``size`` bytes into the views; return how many there were."""
        line = self._line()
        if line[:1] == b"-":
            return Refusal(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"$" or not line[1:].isdigit():
            raise OutOfStep("bytes were due")
        length = int(line[1:])
        if length > size:
            raise OutOfStep(f"{size} bytes were asked for, {length} came")
        self._read(views, length)
        while self._hi - self._lo < 2:
            self._fill()
        if self._buffer[self._lo : self._lo + 2] != b"\r\n":
            raise OutOfStep("bytes do not end where they should")
        self._lo += 2
        return length

    def set_timeout(self, seconds: float) -> None:
        """Say how long to wait for a byte to be sent or received."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; twice is fine."""
        self._connection.disconnect()

    def _read(self, views: Sequence[memoryview], length: int) -> None:
        """Fill the first ``length`` bytes of some views."""
        if len(views) == 1 and length <= self._hi - self._lo:  # as most small ranges are
            views[0].cast("B")[:length] = self._view[self._lo : self._lo + length]
            self._lo += length
            return
        wanted: list[memoryview] = []
        for view in views:
            if not length:
                break
            if not view.nbytes:
                continue
            flat = view.cast("B")[:length]
            length -= flat.nbytes
            ready = min(flat.nbytes, self._hi - self._lo)
            if ready:
                flat[:ready] = self._view[self._lo : self._lo + ready]
                self._lo += ready
            if ready < flat.nbytes:
                wanted.append(flat[ready:])
        self._receive(wanted)

    def _receive(self, views: list[memoryview]) -> None:
        """Receive into views, and what comes behind all of them into the buffer, empty by then."""
        first = 0
        while first < len(views):
            if isinstance(self._sock, ssl.SSLSocket):
                got = self._sock.recv_into(views[first])
            else:
                last = min(len(views), first + IOV_MAX)
                into = (
                    views[first:last] if last - first == IOV_MAX else [*views[first:], self._view]
                )
                got = self._sock.recvmsg_into(into)[0]
            if not got:
                raise _ended()
            while first < len(views) and got >= views[first].nbytes:
                got -= views[first].nbytes
                first += 1
            if first == len(views):
                self._lo, self._hi = 0, got
            elif got:
                views[first] = views[first][got:]

    def _line(self) -> bytes:
        """Read a line, without its end."""
        while (end := self._buffer.find(b"\r\n", self._lo, self._hi)) < 0:
            if self._hi - self._lo == BUFFER:
                raise OutOfStep("a line does not end")
            self._fill()
        line = bytes(self._view[self._lo : end])
        self._lo = end + 2
        return line

    def _fill(self) -> None:
        """Receive some bytes behind those in the buffer."""
        if self._lo:
            rest = self._hi - self._lo
            self._buffer[:rest] = self._buffer[self._lo : self._hi]
            self._lo, self._hi = 0, rest
        got = self._sock.recv_into(self._view[self._hi :])
        if not got:
            raise _ended()
        self._hi += got


def _ended() -> ConnectionResetError:
    return ConnectionResetError("the server closed the connection")


def _joined(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join runs of small pieces, and drop empty ones; large ones stay as they are."""
    run: list[Buffer] = []
    length = 0
    for piece in pieces:
        size = len(piece) if isinstance(piece, bytes) else memoryview(piece).nbytes
        if run and (size > _SMALL or length > BUFFER):
            yield b"".join(run)
            run, length = [], 0
        if size > _SMALL:
            yield piece
        elif size:
            run.append(piece)
            length += size
    if run:
        yield b"".join(run)
