"""Wire: every order and answer comes through a socket as it was, in whatever pieces."""

import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv import KVSpec, Namespace
from unikv.geometry import Box, Interval, Phase
from unikv.orders import (
    Bad,
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
from unikv.wire import Link, Passages, read_answer, read_order, write_answer, write_order

SPEC = KVSpec.mha(layers=4, kv_heads=4, head_dim=8, dtype="bfloat16", page_tokens=16)
KEYED = Namespace(
    spec=SPEC, model="m", weights="unversioned", rope="none", phases=2, tags="blake3_keyed"
)
BOX = Box(Interval(1, 3), Interval(0, 2), Phase(1, 2))
PASSAGE = Passage.of(KEYED, BOX, b"secret" * 6)

HASH = st.text("0123456789abcdef", min_size=64, max_size=64)
KEY = st.text("0123456789abcdefLT_-", min_size=1, max_size=20)
SMALL = st.integers(0, 1 << 40)
TEXT = st.text(max_size=20)
PART = st.builds(
    ReadPart,
    st.just(PASSAGE),
    SMALL,
    st.lists(HASH, max_size=4),
    st.none() | st.just(Interval(0, 1)),
)
PAGE = st.builds(WritePage, HASH, st.none() | HASH, SMALL, st.lists(st.integers(0, 9), max_size=3))
ORDERS = st.one_of(
    st.builds(Read, st.lists(PART, max_size=3), st.booleans()),
    st.builds(Write, st.just(PASSAGE), SMALL, st.lists(PAGE, max_size=3), st.lists(KEY)),
    st.builds(Stat, st.lists(KEY, min_size=1, max_size=5), st.booleans()),
    st.builds(Peek, st.lists(st.tuples(KEY, SMALL, SMALL), max_size=3)),
    st.builds(
        Post,
        st.lists(st.builds(Item, KEY, st.lists(st.binary(max_size=9), max_size=2)), max_size=3),
        st.booleans(),
    ),
)
SECONDS = st.dictionaries(st.sampled_from(["get", "verify"]), st.floats(0, 10), max_size=2)
KIND = st.sampled_from(["missing", "damaged", "error"])
TAIL: dict[str, Any] = {
    "error": st.none() | TEXT,
    "outage": st.booleans(),
    "retries": st.integers(0, 3),
}
ERRORS = st.dictionaries(st.integers(0, 9), TEXT, max_size=2)
CODES = st.lists(st.integers(0, 3), max_size=4)
ANSWERS = st.one_of(
    st.builds(
        ReadDone,
        st.lists(st.builds(Bad, SMALL, SMALL, KEY, TEXT, KIND), max_size=3),
        st.lists(KEY, max_size=2),
        SECONDS,
        **TAIL,
    ),
    st.builds(
        WriteDone,
        SMALL,
        SMALL,
        SMALL,
        st.lists(st.builds(Unwritten, SMALL, KEY, TEXT), max_size=3),
        st.lists(KEY, max_size=2),
        SECONDS,
        **TAIL,
    ),
    st.builds(StatDone, st.lists(st.none() | SMALL, max_size=4), **TAIL),
    st.builds(PeekDone, CODES, st.lists(st.binary(max_size=9), max_size=3), ERRORS, **TAIL),
    st.builds(PostDone, CODES, ERRORS, **TAIL),
)


def through(message: list[Any]) -> list[Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = Thread(target=Link(ours).send, args=(message,))
        sender.start()
        received = Link(theirs).receive(10)
        sender.join()
    assert received is not None
    return received


def plain(value: object) -> object:
    """Return an order without what is equal in content but not by identity."""
    if isinstance(value, Passage):
        return value.text
    if isinstance(value, Interval):
        return (value.start, value.stop)
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


@given(ORDERS)
def test_an_order_comes_through(order: Any) -> None:
    read = read_order(through(write_order(order)), Passages())
    fields = getattr(type(order), "__dataclass_fields__", None) or order._fields
    assert type(read) is type(order)
    for name in fields:
        assert plain(getattr(read, name)) == plain(getattr(order, name))


@given(ANSWERS)
def test_an_answer_comes_through(answer: Any) -> None:
    assert read_answer(through(write_answer(answer))) == answer


def test_a_passage_is_the_same_elsewhere() -> None:
    other = Passage.parse(PASSAGE.text)
    assert other.format.namespace == PASSAGE.format.namespace
    assert (other.box, other.tag_key) == (BOX, PASSAGE.tag_key)
    assert "secret" not in repr(PASSAGE)


def test_a_message_may_come_in_pieces_and_late() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(theirs)
        body = b'["a",1]'
        for piece in (struct.pack("<I", len(body))[:3], struct.pack("<I", len(body))[3:], body[:4]):
            ours.sendall(piece)
            assert link.receive(0.01) is None
        ours.sendall(body[4:])
        assert link.receive(1) == ["a", 1]


def test_who_closes_or_claims_too_much_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(struct.pack("<I", 1 << 31))
        ours.close()
        with pytest.raises(ConnectionError, match="a message of 2147483648 bytes"):
            Link(theirs).receive(1)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(ConnectionError, match="closed"):
        Link(theirs).receive(1)


def test_an_order_for_no_keys_comes_through() -> None:
    read = read_order(through(write_order(Stat([]))), Passages())
    assert isinstance(read, Stat)
    assert list(read.keys) == []


@contextmanager
def signalled(seconds: float = 0.05) -> Iterator[None]:
    """Have a signal with a handler interrupt this thread again and again, as profilers do."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_no_signal_puts_off_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, signalled():
        begun = monotonic()
        assert Link(ours).receive(0.3) is None
        with pytest.raises(TimeoutError, match="bytes of a message were not taken"):
            Link(ours).send(["x" * (8 << 20)], 0.3)
        assert monotonic() - begun < 2


@pytest.mark.parametrize("takes", ["send", "receive"])
def test_a_trickle_does_not_put_off_a_deadline(takes: str) -> None:
    ours, theirs = socket.socketpair()
    stop = Event()

    def trickle() -> None:
        theirs.settimeout(0.1)
        while not stop.wait(0.05):
            with suppress(OSError):
                theirs.recv(1 << 16) if takes == "send" else theirs.send(b"\1")

    thread = Thread(target=trickle)
    with ours, theirs:
        thread.start()
        begun = monotonic()
        try:
            if takes == "receive":
                assert Link(ours).receive(0.3) is None
            else:
                with pytest.raises(TimeoutError):
                    Link(ours).send(["x" * (64 << 20)], 0.3)
            assert monotonic() - begun < 2
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 0.0, 1e300, None], ids=str)
def test_any_number_of_seconds_will_do(seconds: float | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Link(theirs).send(["a"], 1)
        assert Link(ours).receive(seconds) == ["a"]
        Link(ours).send(["b"], seconds)
        assert Link(theirs).receive(1) == ["b"]


def test_a_socket_that_python_timed_before_is_waited_for_all_the_same() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.001)
        assert Link(ours).receive(0.05) is None
        theirs.settimeout(0.001)
        Link(theirs).send(["a"])
        assert Link(ours).receive() == ["a"]
