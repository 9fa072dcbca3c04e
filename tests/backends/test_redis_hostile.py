"""A server that answers what no server should: failures with words, in time, within bounds."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.io_path.lab import within
from tests.servers.redis_fake import FakeRedis, bulk
from tests.servers.redis_server import RedisServer, valkey_binary
from unikv.backends import redis_pool, redis_wire
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Span, Store

CALLS: dict[str, Callable[[Store], object]] = {
    "stat": lambda store: store.stat(["k"]),
    "get": lambda store: store.get([Span("k", 0, 4, [memoryview(bytearray(4))])]),
    "put": lambda store: store.put([Item("k", [b"abcd"])]),
    "delete": lambda store: store.delete(["k"]),
    "list": lambda store: list(store.list()),
}
ODD = {
    "a list of 4 billion": b"*4294967294\r\n",
    "a map with a list as key": b"%1\r\n*0\r\n:1\r\n",
    "a set of lists": b"~1\r\n*0\r\n",
    "a number too long": b":99999999999999999999\r\n",
    "bytes of a negative length": b"$-5\r\n",
    "bytes of a length that is none": b"$abc\r\n",
    "an error that is no text": b"-\xff\xfe\r\n",
    "no protocol": b"\x00\x01\r\n",
    "lists in lists": b"*1\r\n" * 100,
}


def fails(store: Store, call: str) -> None:
    """See that a call raises `StoreError`, or says that every item failed."""
    try:
        outcome = CALLS[call](store)
    except StoreError:
        return
    assert getattr(outcome, "errors", None), outcome


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_is_a_failure(call: str, answer: str) -> None:
    with FakeRedis(lambda _: ODD[answer]) as server:
        store = open_store(server.url)
        with within(1):
            fails(store, call)
        store.close()


@pytest.mark.parametrize("front", [b"$400000000000\r\n", b"+", b"*1000000\r\n+"])
def test_an_answer_without_end_is_cut_off(front: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_wire, "_SMALL_REPLY", 1 << 20)
    with FakeRedis(lambda _: front + b"x" * (2 << 20)) as server:
        store = open_store(f"{server.url.partition('?')[0]}?timeout=30")
        with within(5), pytest.raises(StoreError, match="more than 1048576 bytes"):
            store.stat(["k"])
        store.close()


def test_an_answer_that_trickles_ends_with_the_timeout() -> None:
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(0.05):
            with suppress(OSError):
                server._plugs[-1].send(b"x")

    with FakeRedis(lambda _: b"$1000\r\n") as server:
        store = open_store(server.url)
        thread = threading.Thread(target=trickle)
        thread.start()
        with within(1), pytest.raises(StoreError, match="no answer within"):
            store.stat(["k"])
        stop.set()
        thread.join()
        store.close()


def slots(host: bytes, port: int, first: int = 0, last: int = 16383) -> bytes:
    node = b"*3\r\n%b:%d\r\n%b" % (bulk(host), port, bulk(b"id"))
    return b"*1\r\n*3\r\n:%d\r\n:%d\r\n%b" % (first, last, node)


@contextmanager
def cluster(tell: Callable[[int], bytes], answer: bytes) -> Iterator[str]:
    """Run a server that is a cluster of its own making; yield a URL."""
    with FakeRedis(lambda words: tell(server.port) if words[0] == b"CLUSTER" else answer) as server:
        yield f"{server.url}&cluster=1"


MAPS: dict[str, Callable[[int], bytes]] = {
    "a host that is none": lambda _: slots(b"a..b", 1),
    "a path": lambda _: slots(b"/run/redis.sock", 0),
    "port 0": lambda _: slots(b"127.0.0.1", 0),
    "port 2**63 - 1": lambda _: slots(b"127.0.0.1", 2**63 - 1),
    "NUL": lambda _: slots(b"a\0b", 5),
    "a trillion slots": lambda port: slots(b"127.0.0.1", port, 0, 9 * 10**12),
    "slots from -5": lambda port: slots(b"127.0.0.1", port, -5),
    "slots backward": lambda port: slots(b"127.0.0.1", port, 9, 5),
    "an empty master": lambda _: b"*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n",
    "a number as host": lambda _: b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n:5\r\n:1\r\n",
    "an error within": lambda _: b"*1\r\n*3\r\n:0\r\n:16383\r\n-ERR x\r\n",
    "a number": lambda _: b":5\r\n",
}


@pytest.mark.parametrize("told", MAPS)
def test_a_map_of_slots_that_is_none_is_refused(told: str) -> None:
    url = cluster(MAPS[told], b":4\r\n")
    with url as place, within(2), pytest.raises(StoreError, match="CLUSTER SLOTS"):
        open_store(place)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["a..b:6379", "{}:0", "127.0.0.1:99999999999999999999", "x y:1"])
@pytest.mark.parametrize("code", ["MOVED", "ASK"])
def test_a_redirection_to_no_server_is_a_failure(
    call: str, where: str, code: str, tmp_path: Path
) -> None:
    """A path of this machine least of all: our password would go to whoever listens there."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0)
        reply = f"-{code} 1 {where.format(path)}\r\n".encode()
        with cluster(lambda port: slots(b"127.0.0.1", port), reply) as url, within(2):
            store = open_store(url)
            fails(store, call)
            store.close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.redis
def test_a_key_that_comes_often_costs_a_silent_server_one_timeout(tmp_path: Path) -> None:
    with RedisServer(valkey_binary(), tmp_path / "valkey") as server:
        store = open_store(f"{server.url}?timeout=0.5&connect_timeout=0.5")
        server.freeze()
        begun = time.monotonic()
        outcomes = store.put([Item("key", [b"data"])] * 9)
        took = time.monotonic() - begun
        server.thaw()
        assert [error.retryable for error in outcomes.errors.values()] == [True] * 9
        assert took < 0.5 * 3
        store.close()


def test_no_descriptor_for_a_connection_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-py opens a file of its own before it connects."""
    with FakeRedis(lambda _: b":0\r\n") as server:
        store = open_store(server.url)
        store._exchange().nodes.failed(store._place.node)  # type: ignore[attr-defined]

        def refuse(*_: object) -> None:
            raise OSError(24, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(redis_pool, "_connection", refuse)
            fails(store, "get")
            fails(store, "stat")
        assert store.stat(["k"]) == [None]
        store.close()
