"""S3Store against a server that misbehaves: no wrong byte passes, nothing hangs, it heals."""

import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Thread

import pytest

from tests.backends.s3_open import open_s3
from tests.servers import s3_lies
from tests.servers.s3_hostile import Handler, Misbehave, Server, hangs_up, hostile, refusing, stalls
from unikv.backends.s3 import S3Store
from unikv.backends.s3_credentials import Access
from unikv.errors import StoreError
from unikv.store import Item, Outcomes, Span
from unikv.testing_data import EXISTED, FAILED, MISS, OK, read

DATA = bytes(i * 7 % 251 for i in range(2000))
TIMEOUT_S = 1.2


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with hostile() as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        server.objects["p/key"] = DATA
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "p", timeout=TIMEOUT_S)
    yield store
    store.close()


def asked(server: Server, verb: str) -> list[str]:
    return [request.target for request in server.requests if request.verb == verb]


def span(key: str, start: int, stop: int) -> Span:
    return Span(key, start, stop, [memoryview(bytearray(stop - start))])


def within(seconds: float, call: Callable[[], Outcomes]) -> Outcomes:
    start = time.monotonic()
    outcomes = call()
    assert time.monotonic() - start < seconds
    return outcomes


@pytest.mark.parametrize("lie", s3_lies.LIES, ids=lambda lie: lie.__name__)
def test_B51_no_lie_passes_for_bytes(server: Server, store: S3Store, lie: Misbehave) -> None:
    server.faults["GET"] = lie
    alone = [span("key", 100, 110)]
    two_of_one = [span("key", 100, 110), span("key", 200, 210)]
    many = [span(f"key{i}", 100, 110) for i in range(6)]
    server.objects.update({f"p/key{i}": DATA for i in range(6)})
    for spans in (alone, two_of_one, many):
        start = time.monotonic()
        outcomes = store.get(spans)
        assert time.monotonic() - start < TIMEOUT_S + 1
        for place, (key, start_, stop, into) in enumerate(spans):
            if outcomes.codes[place] == OK and spans is two_of_one and lie in s3_lies.HARMLESS:
                assert bytes(into[0]) == DATA[start_:stop]
                continue
            assert outcomes.codes[place] == FAILED
            assert f"get {key!r}: " in str(outcomes.errors[place])
            assert len(str(outcomes.errors[place])) < 500
            assert outcomes.errors[place].retryable == (lie in s3_lies.PASSING)
    server.faults.clear()
    assert read(store, "key", 100, 110) == DATA[100:110]


@pytest.mark.parametrize(
    ("status", "code", "retryable", "says"),
    [
        (403, "AccessDenied", False, "do not allow this, or ListBucket"),
        (403, "SignatureDoesNotMatch", False, "credentials are wrong"),
        (401, "Unauthorized", False, "credentials are wrong"),
        (404, "NoSuchBucket", False, "there is no bucket 'unikv'"),
        (400, "ExpiredToken", False, "400 ExpiredToken"),
        (301, "PermanentRedirect", False, "want the bucket's own region="),
        (400, "AuthorizationHeaderMalformed", False, "want the bucket's own region="),
        (503, "SlowDown", True, "503 SlowDown"),
        (500, "InternalError", True, "500 InternalError"),
        (429, "TooManyRequests", True, "429 TooManyRequests"),
        (400, "RequestTimeout", True, "400 RequestTimeout"),
        (403, "QuotaExceeded", False, "the store is full"),
        (507, "XMinioStorageFull", False, "the store is full"),
        (418, "Teapot", False, "418 Teapot"),
    ],
)
def test_refusals_say_what_is_wrong_and_whether_it_may_pass(
    server: Server, store: S3Store, status: int, code: str, retryable: object, says: str
) -> None:
    server.faults = dict.fromkeys(["GET", "PUT", "DELETE", "LIST"], refusing(status, code))
    failed = [
        store.get([span("key", 0, 10), span("key", 20, 30)]),
        store.put([Item("key", [b"x"])]),
        store.put([Item("key", [b"x"])], replace=True),
        store.delete(["key"]),
    ]
    for outcomes in failed:
        assert set(outcomes.codes) == {FAILED}
        for error in outcomes.errors.values():
            assert says in str(error)
            assert "said the server" not in str(error)
            assert error.retryable is retryable
    with pytest.raises(StoreError, match=re.escape(says)) as caught:
        list(store.list())
    assert caught.value.retryable is retryable
    server.faults["HEAD"] = refusing(status, code)
    with pytest.raises(StoreError, match="stat 'key': ") as caught:
        store.stat(["key"])  # of which nothing is known: a store that lets nobody in is not empty
    if status != 400:  # an answer to HEAD has no body that says which 400 it is
        assert caught.value.retryable is retryable


def test_B55_only_a_missing_key_is_a_miss(server: Server, store: S3Store) -> None:
    spans = [span("key", 0, 10), span("gone", 0, 10), span("gone", 5, 5)]
    assert list(store.get(spans).codes) == [OK, MISS, MISS]
    assert list(store.delete(["gone", "key"]).codes) == [MISS, OK]
    server.objects["p/key"] = DATA
    server.address = server.address._replace(bucket="another")
    outcomes = store.get(spans)
    assert list(outcomes.codes) == [FAILED] * 3
    assert all("no bucket 'unikv'" in str(error) for error in outcomes.errors.values())
    # To HEAD both answer the same: what is missing is asked for once more.
    assert list(store.delete(["gone", "key"]).codes) == [FAILED] * 2
    with pytest.raises(StoreError, match="no bucket 'unikv'"):
        store.stat(["key"])


@pytest.mark.parametrize("fault", [stalls, hangs_up])
def test_a_silent_server_costs_a_call_one_timeout(
    server: Server, store: S3Store, fault: Misbehave
) -> None:
    """Not one a key; and the same store works when the server does."""
    keys = [f"k{i}" for i in range(100)]
    store.put([Item("first", [b"x"])])
    server.faults = dict.fromkeys(["GET", "HEAD", "PUT", "DELETE", "LIST"], fault)
    buffers = [bytearray(10) for _ in keys]
    spans = [Span(key, 0, 10, [memoryview(data)]) for key, data in zip(keys, buffers, strict=True)]
    calls: list[Callable[[], Outcomes]] = [
        lambda: store.get(spans),
        lambda: store.put([Item(k, [b]) for k, b in zip(keys, buffers, strict=True)]),
        lambda: store.put([Item("k", [b]) for b in buffers], replace=True),
        lambda: store.delete(keys),
    ]
    for call in calls:
        outcomes = within(TIMEOUT_S + 1, call)
        assert set(outcomes.codes) == {FAILED}
        assert all(error.retryable for error in outcomes.errors.values())
        assert all(
            "put '" in str(e) or "get '" in str(e) or "delete '" in str(e)
            for e in outcomes.errors.values()
        )
    with pytest.raises(StoreError) as away:
        store.stat(keys)
    assert away.value.retryable
    spans.clear()
    for buffer in buffers:
        buffer.append(0)  # nobody holds it any more
    server.faults.clear()
    assert store.put([Item(key, [b"there"]) for key in keys]).ok
    assert list(store.stat(keys)) == [5] * 100


def test_a_server_that_takes_no_connection_costs_a_call_one_timeout(store: S3Store) -> None:
    """Its queue is full: it answers no SYN, as a firewall would."""
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for other in waiting:
            other.settimeout(0)
            other.connect_ex(("127.0.0.1", port))
        place = replace(store.place, endpoint=f"http://127.0.0.1:{port}")
        deaf = S3Store(place, Access(None))
        outcomes = within(TIMEOUT_S + 1, lambda: deaf.get([span(f"k{i}", 0, 9) for i in range(99)]))
        assert set(outcomes.codes) == {FAILED}
        assert all(error.retryable for error in outcomes.errors.values())
        for other in waiting:
            other.close()


def test_a_missing_server_is_a_failure_that_may_pass(server: Server, store: S3Store) -> None:
    server.shutdown()
    server.server_close()
    outcomes = store.put([Item("key", [b"x"])])
    assert list(outcomes.codes) == [FAILED]
    assert "cannot connect to http://127.0.0.1" in str(outcomes.errors[0])
    assert outcomes.errors[0].retryable


# Putting


def test_put_asks_once_for_an_object_and_probes_once_for_a_store(
    server: Server, store: S3Store
) -> None:
    threads = [
        Thread(target=lambda i=i: store.put([Item(f"{i}a", [b"x"]), Item(f"{i}b", [b"y"])]))
        for i in range(4)
    ]
    store.put([Item("new", [b"x"])], replace=True)
    assert asked(server, "PUT") == ["/unikv/p/new"]
    store.put([Item("first", [b"a", b"bc"])])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    probes = [target for target in asked(server, "PUT") if "/." in target]
    assert len(probes) == 2
    assert len(asked(server, "PUT")) == 2 + 2 + 8
    assert asked(server, "HEAD") == []
    assert server.objects["p/first"] == b"abc"
    assert "p/.unikv-if-absent" in server.objects
    assert all(not entry.key.startswith(".") for entry in store.list())
    other = open_s3(server.address, "p")
    other.put([Item("first", [b"abc"])])
    assert len(asked(server, "PUT")) == 12 + 2  # one probe: its object is there


@pytest.mark.parametrize(
    "ignorance",
    [None, refusing(501, "NotImplemented"), refusing(400, "InvalidArgument")],
    ids=["silent", "501", "400"],
)
def test_B102_without_if_none_match_a_key_is_looked_for_first(
    server: Server, store: S3Store, ignorance: Misbehave | None
) -> None:
    def put(handler: Handler) -> None:
        if handler.headers.get("If-None-Match") and ignorance:
            ignorance(handler)
        else:
            del handler.headers["If-None-Match"]
            handler.serve_put()

    server.faults["PUT"] = put
    assert list(store.put([Item("key", [b"x" * 2000]), Item("new", [b"y"])]).codes) == [EXISTED, OK]
    assert server.objects["p/key"] == DATA
    assert list(store.put([Item("key", [b"shorter"])]).codes) == [OK]
    assert server.objects["p/key"] == b"shorter"


def test_what_the_server_knows_is_not_learnt_from_a_refusal(server: Server, store: S3Store) -> None:
    """A bucket that is full, or keys that are wrong, for a time: then it is asked again."""
    for refusal in (refusing(403, "AccessDenied"), refusing(403, "QuotaExceeded")):
        server.faults["PUT"] = refusal
        assert list(store.put([Item("key", [DATA]), Item("new", [b"x"])]).codes) == [
            EXISTED,
            FAILED,
        ]
    server.faults.clear()
    server.requests.clear()
    assert list(store.put([Item("key", [DATA]), Item("new", [b"x"])]).codes) == [EXISTED, OK]
    conditional = {name.lower() for name in server.requests[-1].headers}
    assert "if-none-match" in conditional or asked(server, "HEAD") == ["/unikv/p/key"]


def test_B51_a_short_object_is_replaced_by_the_next_put(server: Server, store: S3Store) -> None:
    """A server that keeps less than it was sent is found out by the size, and healed."""

    def keeps_half(handler: Handler) -> None:
        handler.body = handler.body[: len(handler.body) // 2]
        handler.serve_put()

    server.faults["PUT"] = keeps_half
    store.put([Item("new", [b"whole object"])])
    server.faults.clear()
    assert list(store.stat(["new"])) == [6]
    assert read(store, "new", 0, 12) == FAILED
    assert list(store.put([Item("new", [b"whole object"])]).codes) == [OK]
    assert read(store, "new", 0, 12) == b"whole object"


def test_a_conflict_may_pass(server: Server, store: S3Store) -> None:
    """S3 answers 409 to a put that a delete overtook."""
    store.put([Item("first", [b"x"])])
    server.faults["PUT"] = refusing(409, "ConditionalRequestConflict")
    outcomes = store.put([Item("new", [b"x"]), Item("key", [b"y" * 2000])])
    assert list(outcomes.codes) == [FAILED, EXISTED]
    assert outcomes.errors[0].retryable


def test_a_conflict_teaches_nothing_of_the_server(server: Server, store: S3Store) -> None:
    """S3 says so to processes that begin at once: they all make the probe object."""
    count = iter(range(99))

    def conflicts(handler: Handler) -> None:
        if next(count) < 2:
            handler.refuse(409, "ConditionalRequestConflict")
        else:
            handler.serve_put()

    server.faults["PUT"] = conflicts
    outcomes = store.put([Item("one", [b"x"])])
    assert outcomes.errors[0].retryable
    assert list(store.put([Item("one", [b"x"]), Item("key", [DATA])]).codes) == [OK, EXISTED]
    for request in server.requests:
        assert request.verb == "HEAD" or "if-none-match" in {n.lower() for n in request.headers}


# Reading


def test_B54_ranges_are_asked_for_as_planned(server: Server, store: S3Store) -> None:
    """Ranges that touch or overlap are one request, and no byte between ranges is read."""
    wanted = [(300, 400), (0, 100), (100, 200), (150, 210), (211, 220), (300, 400)]
    spans = [span("key", *each) for each in wanted]
    assert store.get(spans).ok
    assert [b"".join(s.into) for s in spans] == [DATA[start:stop] for start, stop in wanted]
    ranges = sorted(request.headers["range"] for request in server.requests)
    assert ranges == ["bytes=0-209", "bytes=211-219", "bytes=300-399"]


def test_ranges_that_end_behind_the_object_fail_alone(store: S3Store) -> None:
    """obstore panics where it joins ranges and the object ends before one of them."""
    wanted = [(0, 10), (1990, 2000), (2000, 2010), (1995, 2005), (5000, 5001), (6000, 6000)]
    outcomes = store.get([span("key", *each) for each in wanted])
    assert list(outcomes.codes) == [OK, OK, FAILED, FAILED, FAILED, FAILED]
    assert all("the object has 2000 bytes" in str(e) for e in outcomes.errors.values())


def test_a_panic_of_the_client_library_is_a_failure(
    store: S3Store, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="obstore panicked"):
        store._bucket.ranges("key", [1990, 2010], [2010, 2020])
    assert "panicked" in capfd.readouterr().err


# Listing


def test_a_prefix_is_listed_without_the_rest(server: Server, store: S3Store) -> None:
    server.objects.update({f"p/{name}": b"x" for name in ("a", "ns_0", "ns_1", "nt", "z", "0b")})
    server.objects.update({"p/ns_/x": b"", "p/ns_*": b"", "p2/ns_2": b"", "ns_3": b""})
    assert sorted(entry.key for entry in store.list("ns_")) == ["ns_0", "ns_1"]
    assert "prefix=p%2Fns_" in server.requests[-1].target
    assert sorted(entry.key for entry in store.list("0")) == ["0b"]
    assert {entry.key for entry in store.list()} == {"a", "ns_0", "ns_1", "nt", "z", "0b", "key"}


@pytest.mark.parametrize("answer", [b"no XML", b"", b"<ListBucketResult><Contents><Key>x</Key>"])
def test_an_odd_listing_is_an_error(server: Server, store: S3Store, answer: bytes) -> None:
    server.faults["LIST"] = lambda handler: handler.send(200, answer)
    with pytest.raises(StoreError, match="answers oddly"):
        list(store.list())


# Secrets


def test_errors_and_names_hold_no_credentials(
    server: Server, store: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    address = server.address

    def refuses_with_secret(handler: Handler) -> None:
        handler.send(403, f"<Error><Message>{address.secret_key}</Message></Error>".encode())

    texts = [repr(store), str(store), repr(store.place), repr(store.opener), repr(vars(store))]
    texts += [repr(vars(store._bucket))]
    for fault in (refuses_with_secret, stalls, hangs_up, s3_lies.no_http):
        server.faults = dict.fromkeys(["GET", "PUT", "LIST"], fault)
        for outcomes in (store.get([span("key", 0, 9)]), store.put([Item("key", [b"x"])])):
            for error in outcomes.errors.values():
                texts += traceback.format_exception(error)
        try:
            list(store.list())
        except StoreError as error:
            texts += traceback.format_exception(error)
    texts += [caplog.text]
    said = "\n".join(texts)
    assert "403" in said
    assert address.access_key not in said
    assert address.secret_key not in said
