"""FsspecStore on HTTP servers: what is away is not empty, and no answer takes more than was asked.

The servers here listen on this machine's loopback and answer as each test says.
"""

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.io_path.lab import within
from unikv.backends import fsspec_http
from unikv.backends.file import FileStore
from unikv.errors import StoreError
from unikv.registry import open_store
from unikv.store import Item, Outcome, Outcomes, Span, Store
from unikv.testing import content, page_key, read

pytest.importorskip("aiohttp")

OK, EXISTED, MISS, FAILED = Outcome
MIB = 1 << 20
TIMEOUT_S = 1.0


class Handler(BaseHTTPRequestHandler):
    """One connection. Serves the files of a folder, with ranges and index pages."""

    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        for part, fault in self.server.faults.items():
            if part in self.path:
                self.close_connection = True
                fault(self)
                return
        path = self.server.folder / self.path.strip("/").removeprefix("kv").lstrip("/")
        if path.is_dir():
            names = [f"{one.name}{'/' * one.is_dir()}" for one in path.iterdir()]
            links = "".join(f'<a href="{name}">{name}</a>' for name in ["../", *names])
            self.answer(200, links.encode(), {"Content-Type": "text/html"})
        elif path.is_file():
            self.serve(path.read_bytes())
        else:
            self.answer(404, b"none")

    do_HEAD = do_GET  # noqa: N815 - http.server calls it so

    def serve(self, data: bytes) -> None:
        asked = self.range()
        if asked is None:
            self.answer(200, data)
        elif asked[0] >= len(data):
            self.answer(416)
        else:
            start, stop = asked[0], min(asked[1], len(data))
            says = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
            self.answer(206, data[start:stop], says)

    def range(self) -> tuple[int, int] | None:
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        return (int(found[1]), int(found[2]) + 1) if found else None

    def answer(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        self.send_response(status)
        says = {"Content-Length": str(len(body) if length is None else length)} | (headers or {})
        for name, value in says.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def flood(self) -> None:
        """Send bytes until nobody takes them."""
        while self.server.sent < self.server.most:
            self.wfile.write(bytes(MIB // 4))
            self.server.sent += MIB // 4

    def log_message(self, *_: object) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    faults: ClassVar[dict[str, Callable[[Handler], None]]]

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.faults = {}  # type: ignore[misc] # by a part of the path
        self.asked: list[str] = []
        self.sent = 0  # bytes of floods
        self.most = 512 * MIB
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"fsspec+http://127.0.0.1:{self.server_address[1]}/kv?timeout={TIMEOUT_S}&threads=4"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of connections that broke: most were broken on purpose."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = open_store(server.url)
    yield store
    store.close()


def status(code: int) -> Callable[[Handler], None]:
    return lambda asked: asked.answer(code, b"so it is")


def be_silent(asked: Handler) -> None:
    asked.server.over.wait(60)


def get(store: Store, *keys: str) -> Outcomes:
    return store.get([Span(key, 2, 6, [memoryview(bytearray(4))]) for key in keys])


# What is right


def test_what_a_file_store_wrote_is_read_and_listed(server: Server, store: Store) -> None:
    files = FileStore(server.folder)
    data = {key: content(key, 5000 + len(key)) for key in (page_key(1), page_key(2), "ns_0", "A")}
    files.put([Item(key, [value]) for key, value in data.items()])
    for key, value in data.items():
        assert read(store, key, 10, 4000) == value[10:4000]
        assert read(store, key, 0, len(value)) == value
        assert read(store, key, 10, len(value) + 1) == FAILED
    gone = page_key(3)
    assert read(store, gone, 0, 4) == MISS
    assert store.stat([*data, gone, "B"]) == [*map(len, data.values()), None, None]
    assert store.stat([gone]) == [None]
    assert {entry.key for entry in store.list()} == set(data)
    assert {entry.key for entry in store.list(page_key(1)[:5])} == {page_key(1)}
    assert list(store.list("zz")) == []
    assert list(store.delete([gone]).codes) == [MISS]
    (error,) = store.put([Item("new", [b"x"])]).errors.values()
    assert "neither publishes files whole nor renames" in str(error)
    files.close()


# What is not there, and what is not known


def test_what_a_server_has_not_is_a_miss(server: Server, store: Store) -> None:
    for code in (404, 410):
        server.faults[""] = status(code)
        assert list(get(store, "a", "b").codes) == [MISS, MISS]
        assert read(store, "a", 0, 0) == MISS
        assert store.stat(["a"]) == [None]
        assert store.stat(["a", "b", "../x"]) == [None] * 3
        assert list(store.delete(["a"]).codes) == [MISS]
    server.faults[""] = status(404)
    with pytest.raises(StoreError, match=r"there is no 'http://.*/kv'"):  # that could be listed
        list(store.list())


def is_unknown(store: Store, *, passing: bool) -> None:
    """Assert that no call tells a failure as an absence."""
    for keys in (["a"], ["a", "b", "c"]):
        outcomes = get(store, *keys)
        assert list(outcomes.codes) == [FAILED] * len(keys)
        assert {error.retryable for error in outcomes.errors.values()} == {passing}
        with pytest.raises(StoreError, match="stat 'a'") as caught:
            store.stat([*keys, "../x"])
        assert caught.value.retryable is passing
        assert list(store.delete(keys).codes) == [FAILED] * len(keys)
    assert read(store, "a", 0, 0) == FAILED  # no byte is asked for: the size tells
    with pytest.raises(StoreError, match="list ''"):
        list(store.list())


def test_a_server_that_is_away_is_not_empty(server: Server, store: Store) -> None:
    server.shutdown()
    server.server_close()
    is_unknown(store, passing=True)


@pytest.mark.parametrize(("code", "passing"), [(500, True), (503, True), (403, False)])
def test_a_server_that_refuses_is_not_empty(
    server: Server, store: Store, *, code: int, passing: bool
) -> None:
    server.faults[""] = status(code)
    is_unknown(store, passing=passing)


def test_a_server_that_breaks_off_is_not_empty(server: Server, store: Store) -> None:
    server.faults[""] = lambda _: None
    is_unknown(store, passing=True)


def test_a_failure_is_told_for_its_key_alone(server: Server, store: Store) -> None:
    (server.folder / "_").mkdir()
    for key in ("there", "hurt"):
        (server.folder / "_" / key).write_bytes(b"0123456789")
    server.faults["hurt"] = status(500)
    assert list(get(store, "there", "gone", "hurt").codes) == [OK, MISS, FAILED]
    assert store.stat(["there", "gone", "hurt"]) == [10, None, None]
    assert store.stat(["gone", "hurt"]) == [None, None]
    assert list(store.delete(["gone", "hurt"]).codes) == [MISS, FAILED]


def test_a_silent_server_costs_a_call_one_timeout(server: Server, store: Store) -> None:
    server.faults[""] = be_silent
    keys = [f"k{i}" for i in range(40)]  # ten times as many as threads
    asking: list[Callable[[], object]] = [lambda: store.stat(keys), lambda: list(store.list())]
    for ask in asking:
        with within(TIMEOUT_S), pytest.raises(StoreError) as caught:
            ask()
        assert caught.value.retryable
    calls: list[Callable[[], Outcomes]] = [lambda: get(store, *keys), lambda: store.delete(keys)]
    for call in calls:
        with within(TIMEOUT_S):
            outcomes = call()
        assert list(outcomes.codes) == [FAILED] * 40
        for key, error in zip(keys, outcomes.errors.values(), strict=True):
            assert error.retryable
            assert repr(key) in str(error)
        assert "not asked" in str(outcomes.errors[39])
    server.faults.clear()
    (server.folder / "_").mkdir()
    (server.folder / "_" / "k1").write_bytes(b"0123456789")
    assert store.stat(keys[:3]) == [None, 10, None]  # the next call asks again


# More than was asked for, or something else


def a_range_without_end(asked: Handler) -> None:
    asked.answer(206, headers={"Content-Length": ""})
    asked.flood()


def a_range_that_is_large(asked: Handler) -> None:
    asked.answer(206, headers={"Content-Range": "bytes 2-5/10"}, length=1 << 40)
    asked.flood()


def a_file_without_end(asked: Handler) -> None:
    asked.answer(200, headers={"Content-Length": ""})
    asked.flood()


def a_refusal_without_end(asked: Handler) -> None:
    asked.answer(404, headers={"Content-Length": ""})
    asked.flood()


@pytest.mark.parametrize(
    ("flood", "code"),
    [
        (a_range_without_end, FAILED),
        (a_range_that_is_large, FAILED),
        (a_file_without_end, FAILED),
        (a_refusal_without_end, MISS),
    ],
)
def test_a_flood_is_not_taken(
    server: Server, store: Store, flood: Callable[[Handler], None], code: Outcome
) -> None:
    server.faults["/kv/_/k"] = flood
    with within(TIMEOUT_S):
        assert read(store, "k", 2, 6) == code
    with within(TIMEOUT_S):
        store.stat(["k"])
    assert server.sent < 32 * MIB  # as far as sockets hold it


def test_a_page_without_end_is_no_listing(
    server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsspec_http, "_PAGE_BYTES", MIB)
    server.faults[""] = a_file_without_end
    with within(TIMEOUT_S), pytest.raises(StoreError, match="want at most 1048576 bytes"):
        list(store.list())
    assert server.sent < 32 * MIB


def the_whole_file(asked: Handler) -> None:
    asked.answer(200, b"0123456789")


def the_start_that_fits(asked: Handler) -> None:
    asked.answer(200, b"0123")


def another_range(asked: Handler) -> None:
    asked.answer(206, b"0123", {"Content-Range": "bytes 0-3/10"})


def one_byte_more(asked: Handler) -> None:
    asked.answer(206, b"23456", {"Content-Range": "bytes 2-6/10"})


def one_byte_less(asked: Handler) -> None:
    asked.answer(206, b"234", {"Content-Range": "bytes 2-4/10"})


@pytest.mark.parametrize(
    "lie", [the_whole_file, the_start_that_fits, another_range, one_byte_more, one_byte_less]
)
def test_other_bytes_than_were_asked_for_fail(
    server: Server, store: Store, lie: Callable[[Handler], None]
) -> None:
    (server.folder / "_").mkdir()
    (server.folder / "_" / "k").write_bytes(b"0123456789")

    def lie_about_ranges(asked: Handler) -> None:
        (lie if asked.range() else the_whole_file)(asked)

    server.faults["/kv/_/k"] = lie_about_ranges
    assert read(store, "k", 2, 6) == FAILED


def test_a_server_that_ignores_ranges_gives_whole_files(server: Server, store: Store) -> None:
    server.faults["/kv/_/k"] = the_whole_file
    assert read(store, "k", 0, 10) == b"0123456789"
    assert read(store, "k", 0, 5) == FAILED
