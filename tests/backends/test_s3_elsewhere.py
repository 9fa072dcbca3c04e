"""S3Store where another answers in the server's place: by a redirect, or a portal by its page."""

import re
from collections.abc import Callable, Iterator

import pytest

from tests.backends.s3_open import open_s3
from tests.io_path.lab import within
from tests.servers.s3_hostile import Handler, Misbehave, Server, entry, hostile, listing
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.store import Item, Outcomes, Span
from unikv.testing_data import FAILED

VERBS = ("GET", "HEAD", "PUT", "DELETE", "LIST")
PAGE = b"<html><body>Log in first</body></html>"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with hostile() as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        server.objects["p/k"] = b"GOODGOOD"
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "p", timeout=3)
    yield store
    store.close()


def to(status: int, where: str) -> Misbehave:
    return lambda asked: asked.answer(
        status, {"Location": where + asked.path, "Content-Length": "0"}
    )


def refuse_all(store: S3Store, says: str) -> None:
    """Try all that a store does: nothing is there, gone, stored, read or empty."""
    view = memoryview(bytearray(8))
    calls: list[Callable[[], Outcomes]] = [
        lambda: store.put([Item("new", [b"secret bytes"])], replace=True),
        lambda: store.put([Item("new", [b"secret bytes"])]),
        lambda: store.get([Span("k", 0, 8, [view])]),
        lambda: store.delete(["k"]),
    ]
    for call in calls:
        outcomes = call()
        assert list(outcomes.codes) == [FAILED]
        assert re.search(says, str(outcomes.errors[0])), outcomes.errors
        assert not outcomes.errors[0].retryable
    with pytest.raises(StoreError, match=says) as listed:
        list(store.list())
    with pytest.raises(StoreError, match=says) as asked:
        store.stat(["k", "new"])
    assert not listed.value.retryable
    assert not asked.value.retryable
    assert bytes(view) == bytes(8)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_to_another_host_is_followed(
    server: Server, store: S3Store, status: int
) -> None:
    with hostile() as other:
        other.objects["p/k"] = b"EVILEVIL"
        there = other.address.endpoint.replace("127.0.0.1", "localhost")
        server.faults = dict.fromkeys(VERBS, to(status, there))
        refuse_all(store, "sends requests elsewhere|want the bucket's own region=")
        assert other.requests == []
        assert other.objects == {"p/k": b"EVILEVIL"}
    server.faults.clear()
    assert store.stat(["k"]) == [8]


def test_a_virtual_host_is_not_fenced_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a proxy stands for all hosts, as the environment says, it is asked."""
    monkeypatch.setenv("HTTP_PROXY", server.address.endpoint)
    for style in ("virtual", "path"):
        far = server.address._replace(endpoint="http://s3.test")
        store = open_s3(far, "p", style=style)
        assert store.stat(["k"]) == [8]
        assert [found.key for found in store.list()] == ["k"]
        store.close()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert open_s3(server.address, "p").stat(["k"]) == [8]


def portal(asked: Handler) -> None:
    """Answer everything with the same page, as one whom the network asks to log in sees."""
    asked.send_response(200)
    asked.send_header("Content-Type", "text/html")
    asked.send_header("Content-Length", str(len(PAGE)))
    asked.send_header("Connection", "close")
    asked.end_headers()
    if asked.command != "HEAD":
        asked.wfile.write(PAGE)


@pytest.mark.parametrize("status", [200, 302, 303])
def test_a_portal_stores_nothing_and_has_nothing(
    server: Server, store: S3Store, status: int
) -> None:
    """Its page comes at once, or behind a redirect to the same host, which cannot be fenced off."""

    def lead(asked: Handler) -> None:
        if status == 200 or asked.path.startswith("/login"):
            portal(asked)
        else:
            to(status, "/login")(asked)

    server.faults = dict.fromkeys(VERBS, lead)
    refuse_all(store, "answers oddly|serves byte ranges wrongly|ETag|want the bucket's own region=")
    assert server.objects == {"p/k": b"GOODGOOD"}


@pytest.mark.parametrize(
    "headers",
    [{"ETag": 'W/"x"'}, {"ETag": '""'}, {"ETag": ""}, {"Last-Modified": None}],
    ids=["weak", "empty", "none", "undated"],
)
def test_what_s3_does_not_say_is_not_believed(
    server: Server, store: S3Store, headers: dict[str, str | None]
) -> None:
    def answer(asked: Handler) -> None:
        asked.send_response(200)
        told = {"ETag": '"x"', "Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"} | headers
        for name, value in told.items():
            if value is not None:
                asked.send_header(name, value)
        asked.send_header("Content-Length", "8" if asked.command == "HEAD" else "0")
        asked.end_headers()

    server.faults = dict.fromkeys(("HEAD", "PUT"), answer)
    with pytest.raises(StoreError, match="answers oddly"):
        store.stat(["k"])
    assert list(store.delete(["k"]).codes) == [FAILED]
    dated = "ETag" in headers
    if dated:  # else the answer to a PUT is whole
        assert list(store.put([Item("n", [b"x"])], replace=True).codes) == [FAILED]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (PAGE, "no ListBucketResult"),
        (b"<ListAllMyBucketsResult/>", "no ListBucketResult"),
        (b"<Error><Code>InternalError</Code></Error>", "no ListBucketResult"),
        (b"", "no XML"),
        (b"<ListBucketResult>", "no XML"),
        (b"<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>", "document type"),
        (b"<?xml version='1.0' encoding='nothing'?><ListBucketResult/>", "no XML"),
        (b"<?xml version='1.0' encoding='gbk'?><ListBucketResult/>", "no XML"),
        (b"<ListBucketResult>" + b"<a>" * 1_000_000, "no XML"),
        (listing(entry("p/a", -5)), "without a name or a size"),
        (listing(entry("p/a", 2**64)), "without a name or a size"),
        (listing(entry("p/a", "9" * 5000)), "without a name or a size"),
        (listing("<Contents><Size>5</Size></Contents>"), "without a name or a size"),
        (listing(entry("x" * 70_000, 5)), "name without end"),
        (listing("", more=True), "does not say where"),
        (listing(entry("p/a", 5), more=True), "does not say where"),
    ],
)
def test_a_listing_that_is_none_is_no_empty_bucket(
    server: Server, store: S3Store, body: bytes, says: str
) -> None:
    server.faults["LIST"] = lambda asked: asked.send(200, body)
    with within(2.0), pytest.raises(StoreError, match=f"answers oddly: .*{says}") as caught:
        list(store.list())
    assert len(str(caught.value)) < 300


def test_a_listing_may_leave_the_date_open(server: Server, store: S3Store) -> None:
    for when in ("junk", "", "+10000-12-31T23:59:59Z"):
        body = listing(entry("p/a", 5, when))
        server.faults["LIST"] = lambda asked, body=body: asked.send(200, body)  # type: ignore[misc]
        assert [tuple(found) for found in store.list()] == [("a", 5, None)]


def forever(entries: Callable[[int], str], token: Callable[[int], str]) -> Misbehave:
    """Say with each page that there is another."""
    count = iter(range(10**9))

    def answer(asked: Handler) -> None:
        at = next(count)
        told = f"<NextContinuationToken>{token(at)}</NextContinuationToken>"
        asked.send(200, listing(entries(at), told, more=True))

    return answer


@pytest.mark.parametrize(
    "fault",
    [
        forever(lambda _: "", lambda _: "t"),
        forever(lambda _: "", str),
        forever(lambda at: entry(f"p/k{at}", 5), lambda _: "t"),
        forever(lambda at: entry(f"p/k{at}", 5), lambda at: str(at % 7)),
        forever(lambda _: "<x/>", str),
    ],
    ids=["same", "barren", "filled", "round", "else"],
)
def test_a_listing_without_end_is_an_error(
    server: Server, store: S3Store, fault: Misbehave
) -> None:
    server.faults["LIST"] = fault
    with within(8.0), pytest.raises(StoreError, match="its listing has no end") as caught:
        list(store.list())
    assert not caught.value.retryable
    assert len(server.requests) <= 102


def test_some_empty_pages_are_no_end(server: Server, store: S3Store) -> None:
    """S3 gives such where much was deleted."""
    last = iter(range(1000))

    def answer(asked: Handler) -> None:
        at = next(last)
        token = f"<NextContinuationToken>{at}</NextContinuationToken>"
        asked.send(
            200,
            listing(entry("p/a", 5), token="", more=False)
            if at == 90
            else listing("", token, more=True),
        )

    server.faults["LIST"] = answer
    assert [found.key for found in store.list()] == ["a"]


def test_an_object_may_have_no_tag_yet(server: Server, store: S3Store) -> None:
    """JuiceFS writes it behind the object: who looks in between sees none."""

    def untagged(asked: Handler) -> None:
        asked.send_response(200)
        asked.send_header("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT")
        asked.send_header("Content-Length", "8" if asked.command == "HEAD" else "0")
        asked.send_header("Connection", "close")
        asked.end_headers()

    server.faults = dict.fromkeys(("HEAD", "PUT"), untagged)
    assert store.stat(["k"]) == [8]
    outcomes = store.put([Item("n", [b"x"])], replace=True)
    assert "ETag Header missing" in str(outcomes.errors[0])
