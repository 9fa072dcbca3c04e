"""Listing of real servers: names that no store gives lie beneath the prefix, and harm nothing."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.backends.s3_open import open_s3
from tests.servers import s3_juicefs, s3_moto
from tests.servers.s3_hostile import Handler, Server, hostile, stalls
from tests.servers.s3_server import S3Server
from unikv.backends import s3_list
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.store import Item, Span
from unikv.testing_data import FAILED, MISS, OK

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    *(
        "a//b",
        "/~x",
        "//",
        "./~x",
        "../~y",
        "dir/",
        "a/dir/",
        "a/b/c",
        "%41",
        "a b",
        "é",
        "a\\b",
        " ",
    ),
    *("a#", "a?b=c", "a+b", "a&b", "a<b", "\x01", "a\nb", ".hidden", "~", "+", "x" * 161),
)
"""What others may call an object beneath the prefix. None of them is a key of a store."""


@pytest.fixture(scope="module", params=["moto", "juicefs"])
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[S3Server]:
    module = {"moto": s3_moto, "juicefs": s3_juicefs}[request.param]
    if not module.installed():
        pytest.skip(f"{request.param} is not installed")
    run: Callable[[Path], Iterator[S3Server]] = getattr(module, request.param)
    with run(tmp_path_factory.mktemp(request.param)) as server:  # type: ignore[attr-defined]
        yield server


@pytest.fixture(scope="module")
def taken(real: S3Server) -> list[str]:
    """Put the foreign names beneath two prefixes; return what the server calls them."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = real.address.client()
    for name in NAMES:
        for prefix in ("p/", "mit Leerzeichen+ü%41/"):
            try:
                client.put_object(Bucket=real.address.bucket, Key=prefix + name, Body=b"")
            except (BotoCoreError, ClientError, ValueError):
                break  # JuiceFS takes no path that leads out
    found = client.list_objects_v2(Bucket=real.address.bucket, Prefix="p/")["Contents"]
    client.close()
    return [str(each["Key"]).removeprefix("p/") for each in found]


@pytest.mark.s3
@pytest.mark.parametrize("prefix", ["p", "mit%20Leerzeichen+%C3%BC%2541"])
def test_foreign_names_are_neither_shown_nor_in_the_way(
    real: S3Server, taken: list[str], monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    assert len(taken) > 9
    for name, value in real.address.environment.items():
        monkeypatch.setenv(name, value)
    store = open_s3(real.address, prefix)
    keys = ["b.c", "dir-", "K.1_-", "z"]
    if "a//b" in taken:  # else it keeps folders, which no object can be called
        keys += ["a", "dir"]
    assert store.put([Item(key, [b"four"]) for key in keys]).ok
    assert sorted(entry.key for entry in store.list()) == sorted(keys)
    assert [entry[:2] for entry in store.list("a")] == [("a", 4)] * ("a" in keys)
    assert [entry.key for entry in store.list("dir")] == sorted({"dir", "dir-"} & set(keys))
    assert list(store.list("q")) == []
    assert all(entry.mtime for entry in store.list())
    monkeypatch.setattr(s3_list, "PAGE", 2)
    assert sorted(entry.key for entry in store.list()) == sorted(keys)
    assert store.delete(keys).ok
    assert list(store.list()) == []
    store.close()


@pytest.mark.s3
def test_a_folder_marker_is_no_object(real: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles make one where somebody makes a folder."""
    for name, value in real.address.environment.items():
        monkeypatch.setenv(name, value)
    client = real.address.client()
    for name in ("marked/", "marked/dir/"):
        client.put_object(Bucket=real.address.bucket, Key=name, Body=b"")
    client.close()
    store = open_s3(real.address, "marked")
    assert list(store.list()) == []
    assert list(store.list("dir")) == []
    store.put([Item("other", [b""])])
    assert [entry.key for entry in store.list()] == ["other"]
    store.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with hostile() as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        server.objects.update({f"p/k{i}": b"data" for i in range(9)})
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "p", timeout=1)
    yield store
    store.close()


def test_pages_follow_each_other_and_folders_are_not_entered(
    server: Server, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.objects.update({f"p/folder{i}/{j}": b"" for i in range(9) for j in range(9)})
    monkeypatch.setattr(s3_list, "PAGE", 4)
    assert [entry.key for entry in store.list()] == [f"k{i}" for i in range(9)]
    assert len(server.requests) == 5  # 9 objects and 9 folders by 4
    bare = open_s3(server.address, "")
    server.objects["top"] = b"x"
    assert [entry.key for entry in bare.list()] == ["top"]
    bare.close()


def test_a_server_that_heeds_neither_prefix_nor_folder_shows_no_others(
    server: Server, store: S3Store
) -> None:
    """What does not lie in the folder is left out here, too."""
    server.objects.update(
        {"xyk7x": b"", "p2/k9": b"", "k9": b"", "p/k/k9": b"", "q": b"", "p": b"", "p/": b""}
    )

    def heedless(asked: Handler) -> None:
        asked.query = {}
        asked.serve_list()

    server.faults["LIST"] = heedless
    assert [entry.key for entry in store.list()] == [f"k{i}" for i in range(9)]
    assert [entry.key for entry in store.list("k3")] == ["k3"]


def test_each_page_ends_in_time(server: Server, store: S3Store) -> None:
    """Whether the server is silent or sends a byte now and then, before or in the body."""

    def drips_head(asked: Handler) -> None:
        for _ in range(100):
            asked.wfile.write(b"HTTP/1.1 200 OK\r\n" if not _ else b"x-a: b\r\n")
            time.sleep(0.1)

    def drips_body(asked: Handler) -> None:
        asked.answer(200, {"Content-Length": "100000"})
        for _ in range(100):
            asked.wfile.write(b" ")
            time.sleep(0.1)

    for fault in (stalls, drips_head, drips_body):
        server.faults["LIST"] = fault
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"did not answer in 1 s") as caught:
            list(store.list())
        assert 0.9 < time.monotonic() - start < 1.6
        assert caught.value.retryable
    server.faults.clear()
    assert len(list(store.list())) == 9


def test_an_answer_without_end_is_cut(server: Server) -> None:
    store = open_s3(server.address, "p", timeout=20)

    def flood(asked: Handler) -> None:
        asked.answer(200, {})
        for _ in range(1000):
            asked.wfile.write(bytes(1 << 20))

    server.faults["LIST"] = flood
    with pytest.raises(StoreError, match="an answer of more than 16777216 bytes"):
        list(store.list())
    store.close()


@pytest.mark.parametrize(
    "cut",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n<ListBucketResult>", b"220 smtp\r\n"],
)
def test_an_answer_that_breaks_off_may_come_whole_again(
    server: Server, store: S3Store, cut: bytes
) -> None:
    def answer(asked: Handler) -> None:
        asked.wfile.write(cut)

    server.faults["LIST"] = answer
    with pytest.raises(StoreError, match="gave no answer") as caught:
        list(store.list())
    assert caught.value.retryable


@pytest.mark.parametrize("host", ["127.0.0.1:1", "nobody.invalid"])
def test_a_missing_server_is_told(server: Server, host: str) -> None:
    store = open_s3(server.address._replace(endpoint=f"http://{host}"), "p", timeout=5)
    with pytest.raises(StoreError, match=f"cannot connect to http://{host}") as caught:
        list(store.list())
    assert caught.value.retryable
    store.close()


# Closing


def test_what_is_under_way_ends_with_the_store(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is made, and no client, once it is closed."""
    monkeypatch.setattr(s3_list, "PAGE", 4)
    store = open_s3(server.address, "p", threads=1)
    entries = store.list()
    assert next(entries).key == "k0"
    closed = False

    def closes(asked: Handler) -> None:
        nonlocal closed
        if not closed:
            closed = True
            store.close()
        asked.serve_get()

    server.faults["GET"] = closes
    view = memoryview(bytearray(4))
    outcomes = store.get([Span(f"k{i}", 0, 4, [view]) for i in range(5)])
    assert list(outcomes.codes) == [OK, *[FAILED] * 4]
    assert "was closed meanwhile" in str(outcomes.errors[1])
    assert store._bucket._client is None
    with pytest.raises(StoreError, match="was closed meanwhile"):
        list(entries)
    assert MISS not in outcomes.codes


def test_where_no_file_can_be_opened_that_is_said(server: Server) -> None:
    """obstore finds no authorities then, and says that there are none."""
    import resource

    store = open_s3(server.address, "p", timeout=2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), hard))
    try:
        with pytest.raises(StoreError, match=r"cannot ask http.*Too many open files") as caught:
            store.stat(["k0"])
        with pytest.raises(StoreError, match="gave no answer: Too many open files"):
            list(store.list())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.retryable
    assert store.stat(["k0"]) == [4]
    store.close()
