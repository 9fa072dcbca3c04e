"""Wire: orders and answers as messages between a client and its I/O process. It carries none out.

A message is its length (u32, little-endian) and JSON. Both ends are the same user's and the same
version's; nothing here is ever stored. Bytes of pages are in the arena, never in a message.
"""

import json
import socket
import struct
from base64 import b64decode, b64encode
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
_TIMEVAL = struct.Struct("@ll")  # seconds and microseconds; see socket(7)


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

    The kernel keeps the time: Python would ask it for each send and receive three times, and beside
    a busy thread wait as often for the interpreter's lock.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waits: dict[int, bytes] = {}  # as the kernel knows them
        self._bytes = bytearray()

    def send(self, message: Message, seconds: float | None = None) -> None:
        """Send a message.

        Raises:
            TimeoutError: it was not taken in time; the link is of no further use.
            OSError: the other end is gone.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        left = memoryview(_LENGTH.pack(len(body)) + body)
        until = None if seconds is None else monotonic() + seconds
        while left:
            self._wait_at_most(socket.SO_SNDTIMEO, None if until is None else until - monotonic())
            try:
                left = left[self._end.send(left) :]
            except BlockingIOError as error:
                raise TimeoutError(f"{len(left)} bytes of a message were not taken") from error

    def receive(self, seconds: float | None = None) -> Message | None:
        """Return the next message, None if it is not there after ``seconds``.

        Raises:
            ConnectionError: the other end is gone.
        """
        flags = socket.MSG_DONTWAIT if seconds is not None and seconds <= 0 else 0
        self._wait_at_most(socket.SO_RCVTIMEO, seconds)
        while (missing := self._missing()) > 0:
            try:
                read = self._end.recv(max(missing, 1 << 16), flags)
            except BlockingIOError:
                return None
            if not read:
                raise ConnectionResetError("the other end has closed")
            self._bytes += read
        (length,) = _LENGTH.unpack_from(self._bytes)
        message: Message = json.loads(self._bytes[4 : 4 + length])
        del self._bytes[: 4 + length]
        return message

    def close(self) -> None:
        """Close the socket."""
        self._end.close()

    def _wait_at_most(self, option: int, seconds: float | None) -> None:
        """Have the kernel end a wait after so long; see socket(7)."""
        if self._end.gettimeout() is not None:  # whoever had it before let Python keep the time
            self._end.settimeout(None)
        micros = 0 if seconds is None else max(1, int(seconds * 1e6))
        wait = _TIMEVAL.pack(*divmod(micros, 1_000_000))
        if self._waits.get(option) != wait:
            self._end.setsockopt(socket.SOL_SOCKET, option, wait)
            self._waits[option] = wait

    def _missing(self) -> int:
        if len(self._bytes) < _LENGTH.size:
            return _LENGTH.size - len(self._bytes)
        (length,) = _LENGTH.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise ConnectionResetError(f"a message of {length} bytes: want at most {MOST_BYTES}")
        return int(length) + _LENGTH.size - len(self._bytes)


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
            return Stat(keys.split("\n"), wanted)
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
