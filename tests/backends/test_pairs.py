"""What unpacks as an `Item` is stored as one, by every store that wants no server of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.backends.s3_open import open_s3
from tests.servers.redis_fake import FakeRedis
from tests.servers.s3_hostile import hostile
from unikv.registry import open_store
from unikv.store import Item, Store
from unikv.testing_data import EXISTED, OK, read

PAIRS = cast("list[Item]", [("one", [b"1", b"23"]), ("two", (b"",))])


@pytest.fixture(params=["memory", "file", "fsspec", "write-through", "write-back", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    if request.param == "s3":
        with hostile() as server:
            for name, value in server.address.environment.items():
                monkeypatch.setenv(name, value)
            store: Store = open_s3(server.address, "p")
            yield store
            store.close()
        return
    url = {
        "memory": "memory://",
        "file": f"file://{tmp_path}/kv",
        "fsspec": f"fsspec+file://{tmp_path}/kv",
    }.get(request.param, f"tiered://?fast=memory://&slow=memory://&mode={request.param}")
    store = open_store(url)
    yield store
    store.close()


def test_plain_pairs_are_items(store: Store) -> None:
    assert list(store.put(PAIRS).codes) == [OK, OK]
    assert list(store.put(PAIRS).codes) == [EXISTED, EXISTED]
    assert list(store.put(PAIRS, replace=True).codes) == [OK, OK]
    assert read(store, "one", 0, 3) == b"123"
    assert store.stat(["one", "two"]) == [3, 0]


def test_plain_pairs_go_to_redis_and_fail_by_name() -> None:
    def answer(words: list[bytes]) -> bytes:
        return b":0\r\n" if words[0] in {b"STRLEN", b"EXISTS"} else b"+OK\r\n"

    with FakeRedis(answer) as fake:
        store = open_store(fake.url)
        assert store.put(PAIRS).ok
        (error,) = store.put(cast("list[Item]", [("../x", [b""])])).errors.values()
        assert "put '../x'" in str(error)
        store.close()
