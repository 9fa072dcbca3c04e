"""Wire: orders and answers as messages between a client and its I/O process. It carries none out.

A message is its length (u32, little-endian) and JSON. Both ends are the same user's and the same
version's; nothing here is ever stored. Bytes of pages are in the arena, never in a message.
"""

import json
import select
import socket
import struct
from base64 import b64decode, b64encode
from math import inf
from time import monotonic
from typing import Any, TypeAlias

from unikv.geometry import Interval
from unikv.orders import (
    Answer,
    Bad,
    Order,
    Peek,
    PeekDone,
    Post,
    PostDone,
    Read,
    ReadDone,
    ReadPart,
    Stat,
    StatDone,
    Unwritten,
    Write,
    WriteDone,
    WritePage,
)
from unikv.passage import Passage
from unikv.store import Item

Message: TypeAlias = list[Any]  # Any: what JSON holds

VERSION = 1
"""Of the messages: another for each change of one. Both ends of a socket must speak the same."""

MOST_BYTES = 1 << 30
"""Bytes of a message; whoever sends more than that is no client of ours."""

_LENGTH = struct.Struct("<I")
_STEP = 64 << 10  # bytes that are sent or received at once
_LONG_S = 1e6  # poll(2) counts milliseconds in 32 bits


class Passages:
    """The passages that messages name, each made once."""

    def __init__(self) -> None:
        self._known: dict[str, Passage] = {}

    def find(self, text: str) -> Passage:
        """Return the passage of a text."""
        if text not in self._known:
            self._known[text] = Passage.parse(text)
        return self._known[text]


class Link:
    """One end of a socket, by whole messages. What arrived of one is kept when time runs out.

    A socket that Python itself times asks the kernel three times for each send and receive. Here it
    is asked again only where it has to be waited for, to a time that no signal puts off.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._bytes = bytearray()
        self.broken = False
        """Whether a message was left amid: by an error, or as its caller was interrupted."""

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: it was not taken in time; the link is of no further use.
            OSError: the other end is gone.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        self._enter()
        left = memoryview(_LENGTH.pack(len(body)) + body)
        until = _until(seconds)
        while left:
            try:
                left = left[self._ready().send(left[:_STEP], socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not self._wait(select.POLLOUT, until):
                    raise TimeoutError(f"{len(left)} bytes of a message were not taken") from None
        self.broken = False

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, None if it is not there after ``seconds``.

        Raises:
            ConnectionError: the other end is gone.
        """
        until = _until(seconds)
        self._enter()
        while (missing := self._missing()) > 0:
            try:
                read = self._ready().recv(max(missing, _STEP), socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not self._wait(select.POLLIN, until):
                    self.broken = False
                    return None
                continue
            if not read:
                raise ConnectionResetError("the other end has closed")
            self._bytes += read
        (length,) = _LENGTH.unpack_from(self._bytes)
        try:
            message: Message = json.loads(self._bytes[4 : 4 + length])
        except ValueError as error:  # no text, too
            raise ConnectionResetError(f"a message that is no JSON: {error}") from error
        del self._bytes[: 4 + length]
        self.broken = False
        return message

    def hang_up(self, seconds: float) -> bool:
        """Say that nothing more will come; tell whether the other end has closed after ``seconds``.

        What it still says is lost.
        """
        until = _until(seconds)
        try:
            self._ready().shutdown(socket.SHUT_WR)
            while self._wait(select.POLLIN, until) or seconds <= 0:
                if not self._end.recv(_STEP, socket.MSG_DONTWAIT):
                    return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Close the socket."""
        self._end.close()

    def _enter(self) -> None:
        if self.broken:
            raise ConnectionResetError("a message was left amid")
        self.broken = True

    def _ready(self) -> socket.socket:
        """Return the socket, which Python does not time."""
        if self._end.gettimeout() is not None:  # by whoever had it before
            self._end.settimeout(None)
        return self._end

    def _wait(self, event: int, until: float) -> bool:
        """Wait until the socket can be asked again; tell whether that was in time."""
        if not (left := until - monotonic()) > 0:
            return False
        poll = select.poll()
        poll.register(self._end, event)
        poll.poll(min(left, _LONG_S) * 1000)  # which goes on after a signal, to the same end
        return True

    def _missing(self) -> int:
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise ConnectionResetError(f"a message of {length} bytes: want at most {MOST_BYTES}")
        return int(length) + _LENGTH.size - len(self._bytes)


def _until(seconds: float | None) -> float:
    return inf if seconds is None else monotonic() + seconds


def write_order(order: Order) -> Message:
    """Return an order as a message."""
    match order:
        case Read(parts, verify):
            rows = [
                [part.passage.text, part.at, "".join(part.pages), _ends(part.layers)]
                for part in parts
            ]
            return ["read", rows, verify]
        case Write(passage, at, pages, again):
            return ["write", passage.text, at, [list(page) for page in pages], list(again)]
        case Stat(keys, wanted):
            return ["stat", "\n".join(keys), wanted]
        case Peek(spans):
            return ["peek", list(spans)]
        case Post(items, replace):
            texts = [[key, [b64encode(one).decode() for one in some]] for key, some in items]
            return ["post", texts, replace]


def read_order(message: Message, passages: Passages) -> Order:
    """Return the order of a message; raises `ConnectionError` where it is none."""
    try:
        return _order(message, passages)
    except (TypeError, ValueError, KeyError) as error:
        raise ConnectionResetError(f"a message {message[:1]!r:.40}: {error!s:.200}") from error


def _order(message: Message, passages: Passages) -> Order:
    match message:
        case ["read", rows, verify]:
            parts = [
                ReadPart(passages.find(text), at, _hashes(pages), layers and Interval(*layers))
                for text, at, pages, layers in rows
            ]
            return Read(parts, verify)
        case ["write", text, at, pages, again]:
            return Write(passages.find(text), at, [WritePage(*page) for page in pages], again)
        case ["stat", keys, wanted]:
            return Stat(keys.split("\n") if keys else [], wanted)
        case ["peek", spans]:
            return Peek([(key, start, stop) for key, start, stop in spans])
        case ["post", rows, replace]:
            items = [Item(key, [b64decode(one) for one in some]) for key, some in rows]
            return Post(items, replace)
    raise ConnectionResetError(f"a message {message[:1]!r:.40}: want an order")


def write_answer(answer: Answer) -> Message:
    """Return an answer as a message."""
    tail = [answer.error, answer.outage, answer.retries]
    match answer:
        case ReadDone(bad, damaged, seconds, coded):
            rows = [list(one) for one in bad]
            return ["read", rows, list(damaged), dict(seconds), list(coded), *tail]
        case WriteDone(stored, existed, written, failed, replaced, seconds):
            counts = [stored, existed, written]
            rows = [list(one) for one in failed]
            return ["write", *counts, rows, list(replaced), dict(seconds), *tail]
        case StatDone(sizes):
            return ["stat", list(sizes), *tail]
        case PeekDone(codes, data, errors):
            texts = [b64encode(one).decode() for one in data]
            return ["peek", list(codes), texts, list(errors.items()), *tail]
        case PostDone(codes, errors):
            return ["post", list(codes), list(errors.items()), *tail]


def read_answer(message: Message) -> Answer:
    """Return the answer of a message; raises `ConnectionError` where it is none."""
    try:
        return _answer(message)
    except (TypeError, ValueError, KeyError) as error:
        raise ConnectionResetError(f"a message {message[:1]!r:.40}: {error!s:.200}") from error


def _answer(message: Message) -> Answer:
    match message:
        case ["read", bad, damaged, seconds, [size, count], *tail]:
            return ReadDone([Bad(*one) for one in bad], damaged, seconds, (size, count), *tail)
        case ["write", stored, existed, written, failed, replaced, seconds, *tail]:
            rows = [Unwritten(*one) for one in failed]
            return WriteDone(stored, existed, written, rows, replaced, seconds, *tail)
        case ["stat", sizes, *tail]:
            return StatDone(sizes, *tail)
        case ["peek", codes, texts, errors, *tail]:
            return PeekDone(codes, [b64decode(one) for one in texts], dict(errors), *tail)
        case ["post", codes, errors, *tail]:
            return PostDone(codes, dict(errors), *tail)
    raise ConnectionResetError(f"a message {message[:1]!r:.40}: want an answer")


def _ends(layers: Interval | None) -> list[int] | None:
    return None if layers is None else [layers.start, layers.stop]


def _hashes(joined: str) -> list[str]:
    return [joined[at : at + 64] for at in range(0, len(joined), 64)]
