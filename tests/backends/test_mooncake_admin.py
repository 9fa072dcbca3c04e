"""MooncakeStore's questions to the master's HTTP server: what it answers wrong, and no leases."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.io_path.lab import within
from tests.servers.mooncake_cluster import MIB, free_port, running
from tests.servers.mooncake_fake import FakeNative, fake_store
from unikv.backends.mooncake_admin import KEYS_A_QUESTION, Admin
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Entry, Item, Outcome, Outcomes, Span, Store
from unikv.testing import content, page_key

OK, EXISTED, MISS, FAILED = Outcome


@contextmanager
def server(answers: dict[str, bytes | int]) -> Iterator[int]:
    """Answer each path, less its query, with bytes or a status; stall at 0."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = answers[self.path.partition("?")[0]]
            if answer == 0:
                release.wait(30)
                return
            body = answer if isinstance(answer, bytes) else b"no"
            self.send_response(200 if isinstance(answer, bytes) else answer)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=[0.01])
        thread.start()
        yield http.server_port
        release.set()
        http.shutdown()
        thread.join()


def _drip() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    while True:
        time.sleep(0.05)
        yield b"x"


def _drip_head() -> Iterator[bytes]:
    while True:
        time.sleep(0.05)
        yield b"H"


def _continue() -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 100


def _headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield b"X-A: aaaa\r\n"


@pytest.mark.parametrize("pieces", [_drip, _drip_head, _continue, _headers])
@pytest.mark.parametrize("call", ["sizes", "names"])
def test_an_answer_that_never_ends_is_given_up(
    pieces: Callable[[], Iterator[bytes]], call: str
) -> None:
    def serve() -> None:
        plug, _ = listener.accept()
        with plug, suppress(OSError):
            plug.recv(4096)
            for piece in pieces():
                plug.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        admin = Admin("127.0.0.1", listener.getsockname()[1], 0.4)
        with within(0.5), pytest.raises(StoreError, match="HTTP server"):
            next(admin.names()) if call == "names" else admin.sizes(["key"])
        admin.close()
        thread.join()


def told(**sizes: object) -> bytes:
    """Answer as a master does: ``values`` of each key, None for what is not there."""
    nothing = {"values": None, "disk_values": None, "local_disk_values": None}
    data = {
        key: {"ok": size is not None, **nothing, "values": size and [{"size_": size}]}
        for key, size in sizes.items()
    }
    return json.dumps({"success": True, "data": data}).encode()


def test_sizes_are_those_of_any_replica() -> None:
    kinds = {"disk_values": 1, "local_disk_values": 2}
    data: dict[str, object] = {
        kind: {"ok": True, "values": [], kind: [{"object_size": size}]}
        for kind, size in kinds.items()
    }
    data |= {"nof": {"ok": True, "values": None, "nof_values": [{"size_": 3}]}}
    data |= {"gone": {"ok": False}, "none": {"ok": True, "values": []}}
    with server({"/batch_query_keys": json.dumps({"data": data}).encode()}) as port:
        admin = Admin("127.0.0.1", port, 5)
        assert admin.sizes(list(data)) == {**kinds, "nof": 3}
        admin.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no JSON",
        b"[]",
        b"[" * 100_000,
        b'{"data": {}}',
        b'{"data": {"key": 5}}',
        b'{"data": {"key": {"ok": true, "values": 7}}}',
        b'{"data": {"key": {"ok": true, "values": [{}]}}}',
        told(key="1"),
        told(key=-5),
        told(key=True),
        told(key=1.5),
        b'\xff\xfe{"data"',
    ],
)
def test_what_no_master_answers_is_an_error(body: bytes) -> None:
    with server({"/batch_query_keys": body}) as port:
        admin = Admin("127.0.0.1", port, 5)
        with pytest.raises(StoreError, match="answers what no Mooncake master does") as caught:
            admin.sizes(["key"])
        assert not caught.value.retryable
        assert len(str(caught.value)) < 300
        admin.close()


@pytest.mark.parametrize(("status", "passes"), [(404, False), (403, False), (500, True), (0, True)])
def test_a_server_that_refuses_or_stalls_is_an_error_in_time(
    status: int,
    passes: bool,  # noqa: FBT001
) -> None:
    with server({"/batch_query_keys": status, "/get_all_keys": status}) as port:
        admin = Admin("127.0.0.1", port, 0.2)
        begun = time.monotonic()
        for ask in (lambda: admin.sizes(["key"]), lambda: dict.fromkeys(admin.names())):
            with pytest.raises(StoreError, match=f"127.0.0.1:{port}") as caught:
                ask()
            assert caught.value.retryable == passes
        assert time.monotonic() - begun < 2
        admin.close()


def test_no_server_is_an_error_and_no_miss() -> None:
    with fake_store(FakeNative({"key": b"x"}), f"wait=0&admin=127.0.0.1:{free_port()}") as store:
        with pytest.raises(StoreError, match=r"stat of 1 keys.*HTTP server") as caught:
            store.stat(["key"])
        assert caught.value.retryable
        with pytest.raises(StoreError, match="HTTP server"):
            list(store.list())
        outcomes = store.put([Item("key", [b"y"])])
        assert list(outcomes.codes) == [FAILED]


def test_a_kept_connection_that_the_server_closed_is_opened_anew() -> None:
    answers: dict[str, bytes | int] = {"/batch_query_keys": told(key=5)}
    with server(answers) as port:
        admin = Admin("127.0.0.1", port, 5)
        assert admin.sizes(["key"]) == {"key": 5}
        [kept] = admin._idle
        kept.sock.close()
        assert admin.sizes(["key"]) == {"key": 5}
        admin.close()


def test_keys_of_others_and_hostile_ones_are_not_listed() -> None:
    good = [page_key(i) for i in range(3)]
    names = [*good, "vllm@model@tp_rank:0", "../x", "", "a b", "\N{SNOWMAN}", "k" * 161, ".x"]
    answers: dict[str, bytes | int] = {
        "/get_all_keys": "".join(f"{name}\n" for name in names).encode() + b"\xff\n",
        "/batch_query_keys": told(**dict(zip(good, [5, None, 7], strict=True))),
    }
    with (
        server(answers) as port,
        fake_store(FakeNative(), f"admin=127.0.0.1:{port}") as store,
    ):
        assert list(store.list()) == [Entry(good[0], 5, None), Entry(good[2], 7, None)]
        assert list(store.list("zz")) == []


def test_a_listing_that_is_closed_amid_says_so() -> None:
    good = [page_key(i) for i in range(3 * KEYS_A_QUESTION)]
    answers: dict[str, bytes | int] = {
        "/get_all_keys": "\n".join(good).encode(),
        "/batch_query_keys": told(**dict.fromkeys(good, 5)),
    }
    with server(answers) as port, fake_store(FakeNative(), f"admin=127.0.0.1:{port}") as store:
        entries = store.list()
        assert next(entries).key == good[0]
        store.close()
        with pytest.raises(StoreError, match="closed"):
            list(entries)


def get_all(store: Store, keys: list[str], size: int) -> Outcomes:
    return store.get([Span(key, 0, size, [memoryview(bytearray(size))]) for key in keys])


@pytest.mark.mooncake
@pytest.mark.parametrize("lease_free", [True, False])
def test_B87_what_is_only_probed_can_be_evicted_and_what_is_read_is_kept(
    tmp_path: Path,
    lease_free: bool,  # noqa: FBT001
) -> None:
    """A full store of which all keys are probed all the time, and few are read, takes new ones.

    Probes of the library take leases: with them, nothing can be evicted.
    """
    with running(tmp_path, size=32 * MIB, lease_ms=5000) as cluster:
        options = {"admin": cluster.admin} if lease_free else {}
        store = open_store(cluster.url(wait=1, **options))
        size = 32_000  # all of one size: what goes makes room for what comes
        keys = [page_key(i) for i in range(950)]
        for first in range(0, 950, 50):
            store.put([Item(key, [content(key, size)]) for key in keys[first : first + 50]])
        some = keys[400:450]
        found = get_all(store, some, size).codes
        hot = [key for key, code in zip(some, found, strict=True) if code == OK][:10]
        assert len(hot) == 10
        stop = threading.Event()

        def probe() -> None:
            while not stop.wait(0.05):
                store.stat(keys)
                get_all(store, hot, size)

        thread = threading.Thread(target=probe)
        thread.start()
        try:
            time.sleep(0.5)
            codes: list[Outcome] = []
            for batch in range(20):
                new = [page_key(("new", batch, i)) for i in range(10)]
                codes += store.put([Item(key, [content(key, size)]) for key in new]).codes
                get_all(store, new, size)  # in use from now on
                if FAILED in codes:
                    break
            assert (FAILED in codes) == (not lease_free)
            assert get_all(store, hot, size).ok
        finally:
            stop.set()
            thread.join()
        store.close()
