"""A server's replies are read as they are meant, however cut; what is not meant ends the wire."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.redis_fake import FakeRedis, bulk, commands
from unikv.backends.redis_ask import REPLY_BYTES
from unikv.backends.redis_errors import OutOfStep, Refusal
from unikv.backends.redis_wire import BUFFER, Wire
from unikv.registry import open_store
from unikv.store import Buffer, Item, Outcome, Span
from unikv.testing import content


class Plug:
    """One end of a pair of sockets, as a connection that was made."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def disconnect(self) -> None:
        self._sock.close()


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(2)
    wire = Wire(Plug(ours))
    yield wire, theirs
    wire.close()
    theirs.close()


def views(sizes: Sequence[int]) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


REPLIES = st.lists(
    st.one_of(
        st.integers(0, 3000),  # bytes, whole
        st.sampled_from([BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER]),
        st.text(st.characters(categories=["L", "N", "Zs"]), max_size=40).map("ERR ".__add__),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(
    REPLIES,
    st.lists(st.one_of(st.integers(1, 9), st.integers(1000, 90_000)), min_size=1, max_size=8),
)
def test_replies_arrive_in_any_pieces(replies: list[int | str], cuts: list[int]) -> None:
    """However the stream is cut, each range gets its bytes and each refusal its words."""
    sent = [
        bulk(content(str(i), reply)) if isinstance(reply, int) else f"-{reply}\r\n".encode()
        for i, reply in enumerate(replies)
    ]
    stream = b"".join(sent)
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    wire = Wire(Plug(ours))

    def feed() -> None:
        at = turn = 0
        with suppress(OSError):  # the reader went: it says why
            while at < len(stream):
                step = cuts[turn % len(cuts)]
                theirs.sendall(stream[at : at + step])
                at, turn = at + step, turn + 1

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        for i, reply in enumerate(replies):
            if isinstance(reply, str):
                found = wire.bytes_into(views([9]), 9)
                assert isinstance(found, Refusal)
                assert f"{found.code} {found.text}" == reply
                continue
            first = reply * i // len(replies)
            into = views([first, 0, reply - first])
            assert wire.bytes_into(into, reply) == reply
            assert b"".join(into) == content(str(i), reply)
        assert wire.is_idle
    finally:
        wire.close()
        theirs.close()
        thread.join()


def test_very_many_views_are_filled(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    data = content("many", 9000)
    thread = threading.Thread(target=theirs.sendall, args=[bulk(data) + b":7\r\n"])
    thread.start()
    into = views([3] * 3000)
    assert wire.bytes_into(into, 9000) == 9000
    assert b"".join(into) == data
    assert wire.reply() == 7
    thread.join()


def test_pieces_arrive_in_order(pair: tuple[Wire, socket.socket]) -> None:
    """Small ones are joined, large ones are not; empty ones and other shapes do no harm."""
    wire, theirs = pair
    large = content("large", 3_000_000)
    pieces: list[Buffer] = [b"ab", b"", memoryview(large), bytearray(b"cd")]
    pieces.append(memoryview(large).cast("I").cast("B").cast("B", (100, 30_000)))
    pieces += [b"%d" % i for i in range(5000)]
    expected = b"".join(pieces)
    found = bytearray()

    def drain() -> None:
        while len(found) < len(expected):
            found.extend(theirs.recv(100_000))

    thread = threading.Thread(target=drain)
    thread.start()
    wire.send(pieces)
    thread.join()
    assert found == expected


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"+OK\r\n", "bytes were due"),
        (b":5\r\n", "bytes were due"),
        (b"$-1\r\n", "bytes were due"),
        (b"$x\r\n", "bytes were due"),
        (b"*1\r\n$1\r\na\r\n", "bytes were due"),
        (b"$6\r\nabcdef\r\n", "5 bytes were asked for, 6 came"),
        (b"$99999999999999\r\n", "5 bytes were asked for"),
        (b"$4\r\nabcdefgh", "do not end where they should"),
        (b"x" * (BUFFER + 10), "a line does not end"),
    ],
)
def test_a_reply_that_cannot_be_meant_is_out_of_step(
    pair: tuple[Wire, socket.socket], reply: bytes, message: str
) -> None:
    wire, theirs = pair
    theirs.sendall(reply)
    with pytest.raises(OutOfStep, match=message):
        wire.bytes_into(views([5]), 5)


def test_garbage_is_out_of_step(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(OutOfStep):
        wire.reply()
    theirs.sendall(b":1\r\n")
    with pytest.raises(OutOfStep, match="a line was due"):
        Wire(Plug(theirs)) and wire.status()


def span(key: str, size: int) -> tuple[Span, bytearray]:
    data = bytearray(size)
    return Span(key, 0, size, [memoryview(data)]), data


def test_a_late_reply_is_never_the_next_ones() -> None:
    """The first answer comes after the timeout: the second call must not read it as its own."""
    released = threading.Event()

    def answer(words: list[bytes]) -> bytes:
        if words[1] == b"unikv:slow":
            released.wait(5)
            return bulk(b"SLOW!")
        return bulk(b"quick")

    with FakeRedis(answer) as server:
        store = open_store(server.url)
        slow, _ = span("slow", 5)
        quick, data = span("quick", 5)
        (error,) = store.get([slow]).errors.values()
        assert "no answer within 0.4 s" in str(error)
        assert error.retryable
        released.set()
        for _ in range(3):
            assert store.get([quick]).ok
            assert data == b"quick"
        assert server.connections == 2
        store.close()


def test_a_reply_that_nobody_asked_for_costs_its_connection() -> None:
    """One reply too many would shift all that follow by one."""
    with FakeRedis(lambda words: bulk(words[1][-5:]) * 2) as server:
        store = open_store(server.url)
        for name in ("one11", "two22", "three"):
            wanted, data = span(name, 5)
            assert store.get([wanted]).ok
            assert data.decode() == name
        assert server.connections >= 3
        store.close()


@pytest.mark.parametrize("ending", [b"", b"$5\r\n", b"$5\r\nab", b"$5\r\nabcde", b"$5\r\nabcde\r"])
def test_a_reply_that_breaks_off_fails_what_it_was_for_and_what_follows(ending: bytes) -> None:
    """What came before it is good."""

    def answer(words: list[bytes]) -> bytes | None:
        return bulk(b"first") if words[1] == b"unikv:a" else ending or None

    with FakeRedis(answer) as server:
        store = open_store(server.url)
        spans = [span(key, 5) for key in "abc"]
        outcomes = store.get([each for each, _ in spans])
        assert list(outcomes.codes) == [Outcome.OK, Outcome.FAILED, Outcome.FAILED]
        assert spans[0][1] == b"first"
        assert all(error.retryable for error in outcomes.errors.values())
        store.close()


def test_an_interrupt_in_the_middle_leaves_no_connection_out_of_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeRedis(lambda words: bulk(words[1][-5:])) as server:
        store = open_store(server.url)
        wanted, data = span("three", 5)
        read = Wire.bytes_into

        def interrupted(*_: object) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(Wire, "bytes_into", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.get([span("one11", 5)[0], span("two22", 5)[0]])
        monkeypatch.setattr(Wire, "bytes_into", read)
        assert store.get([wanted]).ok
        assert data == b"three"
        store.close()


def test_B55_empty_results_and_error_codes_are_no_hits() -> None:
    """Of a batch of three the second gives nothing, the third an error first and then its bytes."""
    turns = iter(["-LOADING loading the dataset in memory\r\n"])

    def answer(words: list[bytes]) -> bytes:
        if words[0] != b"GETRANGE":
            return b":0\r\n"
        if words[1] == b"unikv:b":
            return bulk(b"")
        if words[1] == b"unikv:c" and (refusal := next(turns, None)):
            return refusal.encode()
        return bulk(b"bytes")

    with FakeRedis(answer) as server:
        store = open_store(server.url)
        spans = [span(key, 5)[0] for key in "abc"]
        outcomes = store.get(spans)
        assert list(outcomes.codes) == [Outcome.OK, Outcome.MISS, Outcome.FAILED]
        assert outcomes.errors[2].retryable
        assert list(store.get(spans).codes) == [Outcome.OK, Outcome.MISS, Outcome.OK]
        store.close()


def test_no_more_is_on_its_way_than_said() -> None:
    """Replies wait in the server's memory: a client asks for a bounded part of them ahead."""
    size = REPLY_BYTES // 10
    with FakeRedis(lambda _: b"") as server:
        store = open_store(server.url)
        outcomes = store.get([span(f"k{i}", size)[0] for i in range(50)])
        store.close()
    assert len(outcomes.errors) == 50
    assert 10 <= len(server.commands) <= 11


def test_values_are_sent_as_they_are() -> None:
    """SET, its length, the bytes of all buffers, the condition: to the letter."""
    with FakeRedis(lambda words: b"+OK\r\n" if words[0] == b"SET" else b":0\r\n") as server:
        store = open_store(server.url + "&ttl=60&prefix=p:")
        assert store.put([Item("key", [b"ab", memoryview(b"cd"), b""])]).ok
        assert store.put([Item("key", [b"ef"])], replace=True).ok
        store.close()
    sets = [words for words in server.commands if words[0] == b"SET"]
    assert sets == [
        [b"SET", b"p:key", b"abcd", b"NX", b"EX", b"60"],
        [b"SET", b"p:key", b"ef", b"EX", b"60"],
    ]


def test_commands_of_the_fake_are_read_whole() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n")
    ours.close()
    assert list(commands(theirs)) == [[b"GET", b"a\r\nb"]]
    theirs.close()
