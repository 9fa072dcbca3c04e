"""S3Contract: the promises of a store, asked of `S3Store` on one server. It starts no server."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.backends.s3_interop import Interop
from tests.backends.s3_open import open_s3
from tests.servers.s3_server import S3Server
from unikv.backends.s3 import S3Store
from unikv.errors import StoreError
from unikv.store import Item, Span, Store
from unikv.testing import StoreContract
from unikv.testing_data import EXISTED, FAILED, OK, Keys, content, read


class S3Contract(Interop, StoreContract):
    """Inherit it and give a fixture ``server``."""

    heeds_if_none_match = True
    checks_signatures = True

    @pytest.fixture(autouse=True)
    def use(self, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        for name, value in server.address.environment.items():
            monkeypatch.setenv(name, value)

    def open(self, folder: Path) -> Store:
        return open_s3(
            self._server.address, f"contract{folder}"
        )  # each test has a folder of its own

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return self.open(folder)

    def test_B46_a_reader_sees_whole_objects_only(
        self, store: Store, second: Store, keys: Keys
    ) -> None:
        """A server may break off, or answer 500, where an object is deleted: that may pass."""
        key = keys.page("busy")
        whole = [content(key, 30_000, version) for version in range(20)]
        done = Event()

        def watch() -> int:
            wrong = 0
            while not done.is_set():
                data = bytearray(30_000)
                outcomes = second.get([Span(key, 0, 30_000, [memoryview(data)])])
                wrong += outcomes.codes[0] == OK and data not in whole
                wrong += outcomes.codes[0] == FAILED and not outcomes.errors[0].retryable
            return wrong

        with ThreadPoolExecutor(8) as pool:
            watchers = [pool.submit(watch) for _ in range(8)]
            for version, data in enumerate(whole):
                store.put([Item(key, [data[:7], data[7:]])], replace=version % 3 > 0)
                if version % 3 == 2:
                    store.delete([key])
            done.set()
            assert [watcher.result() for watcher in watchers] == [0] * 8

    def test_B102_of_many_stores_one_stores(self, store: Store, tmp_path: Path, keys: Keys) -> None:
        """As many processes would: what the threads of one store agree on, these do not know.

        Where the server ignores If-None-Match several may store the same bytes, which harms none.
        """
        stores = [self.open_again(store, tmp_path / "store") for _ in range(8)]
        for turn in range(5):
            key = keys.page(turn)
            item = Item(key, [content(key, 50_000)])
            with ThreadPoolExecutor(8) as pool:
                codes = list(pool.map(lambda each, item=item: each.put([item]).codes[0], stores))
            assert set(codes) <= {OK, EXISTED}
            assert codes.count(OK) == 1 or not self.heeds_if_none_match
            assert read(store, key, 0, 50_000) == content(key, 50_000)
        for each in stores:
            each.close()

    def test_wrong_keys_and_buckets_fail_and_say_so(
        self, store: Store, keys: Keys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are no misses: whoever took them for such would fill a store that is not there."""
        address = self._server.address
        key = keys.page(0)
        store.put([Item(key, [b"data"])])
        nowhere = open_s3(address._replace(bucket="no-such-bucket"), "p")
        assert_all_fail(nowhere, key, "there is no bucket 'no-such-bucket'")
        if not self.checks_signatures:
            return
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        assert_all_fail(open_s3(address, "p"), key, "answered 403")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        assert_all_fail(open_s3(address, "p"), key, "answered 403")


def assert_all_fail(store: S3Store, key: str, says: str) -> None:
    """Every call fails, for good, and says why."""
    with pytest.raises(StoreError, match=r"no bucket|the credentials are wrong") as away:
        store.stat([key, "../x"])
    assert not away.value.retryable
    span = Span(key, 0, 4, [memoryview(bytearray(4))])
    calls = [store.get([span]), store.put([Item(key, [b"x"])])]
    calls += [store.put([Item(key, [b"x"])], replace=True)]
    for outcomes in calls:
        assert list(outcomes.codes) == [FAILED]
        assert says in str(outcomes.errors[0])
        assert not outcomes.errors[0].retryable
    # An answer to HEAD names no code; that of a missing bucket is told by a second request.
    [deleted] = store.delete([key]).codes
    assert deleted == FAILED
    with pytest.raises(StoreError, match=says):
        list(store.list())
