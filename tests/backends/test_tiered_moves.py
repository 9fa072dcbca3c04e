"""What two tiers move between them arrives whole and in order, and nothing deleted comes back."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.backends.tier_faults import Moody
from unikv.backends import tiered_report, tiered_url
from unikv.backends.file import FileStore
from unikv.backends.tiered import TieredStore, tiered
from unikv.backends.tiered_report import TierReport
from unikv.errors import StoreError, UrlError
from unikv.registry import open_store
from unikv.store import Item, Outcome
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome


@pytest.fixture
def fast() -> Moody:
    return Moody()


@pytest.fixture
def slow() -> Moody:
    return Moody()


@pytest.fixture
def through(fast: Moody, slow: Moody) -> Iterator[TieredStore]:
    store = tiered(fast, slow, promote_bytes=1000, wait_s=5)
    yield store
    store.close()


@pytest.fixture
def back(fast: Moody, slow: Moody) -> Iterator[TieredStore]:
    store = tiered(fast, slow, mode="write-back", wait_s=5)
    yield store
    store.close()


def until(holds: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < stop
        time.sleep(0.005)


# Up


def test_a_load_of_a_part_promotes_the_whole(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    data = content("key", 1000)
    slow.put([Item("key", [data])])
    assert read(through, "key", 10, 20) == data[10:20]
    until(lambda: fast.held() == {"key": data})
    until(lambda: through.report().promoted == 1)
    calls = slow.calls.copy()
    assert read(through, "key", 0, 1000) == data
    assert slow.calls == calls


def test_what_is_too_large_is_not_promoted(through: TieredStore, fast: Moody, slow: Moody) -> None:
    slow.put([Item("key", [bytes(1001)])])
    assert read(through, "key", 0, 5) == bytes(5)
    until(lambda: through.report().promotions_dropped == 1)
    assert fast.held() == {}


def test_nothing_is_promoted_where_nothing_shall_be(fast: Moody, slow: Moody) -> None:
    store = tiered(fast, slow, promote_bytes=0)
    slow.put([Item("key", [b"data"])])
    assert read(store, "key", 0, 4) == b"data"
    store.close()
    assert (fast.items["put"], store.report().promotions_dropped) == (0, 0)


def test_a_wrong_size_in_the_fast_tier_heals_from_the_slow_one(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.put([Item("key", [b"whole object"])])
    fast.put([Item("key", [b"whole"])])
    assert read(through, "key", 0, 12) == b"whole object"
    until(lambda: fast.held() == {"key": b"whole object"})


def test_what_another_removes_meanwhile_is_not_left_in_the_fast_tier(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.put([Item("key", [b"data"])])
    fast.slow = {"put"}
    assert read(through, "key", 0, 4) == b"data"
    assert fast.reached.wait(10)
    slow.delete(["key"])  # as another process does
    fast.gate.set()
    until(lambda: through.report().promotions_waiting == 0)
    assert fast.held() == {}


def test_a_failed_promotion_is_counted(through: TieredStore, fast: Moody, slow: Moody) -> None:
    slow.put([Item("key", [b"data"])])
    fast.broken = {"put"}
    assert read(through, "key", 0, 4) == b"data"
    until(lambda: through.report().promotion_errors == 1)
    assert "broken" in through.report().promotion_error


# Down


def test_the_slow_tier_gets_what_was_put_last(back: TieredStore, fast: Moody, slow: Moody) -> None:
    slow.slow = {"put"}
    back.put([Item("key", [b"one"])])
    assert slow.reached.wait(10)
    slow.gate.set()
    for data in (b"two", b"three"):
        assert back.put([Item("key", [data])], replace=True).codes[0] == OK
    report = back.flush()
    assert report.unwritten == {}
    assert fast.held() == slow.held() == {"key": b"three"}


def test_what_was_deleted_does_not_come_back(back: TieredStore, fast: Moody, slow: Moody) -> None:
    slow.slow = {"put"}
    back.put([Item("first", [b"x"])])
    assert slow.reached.wait(10)
    back.put([Item("key", [b"data"])])  # waits behind the first
    assert list(back.delete(["key"]).codes) == [OK]
    slow.gate.set()
    report = back.flush()
    assert (report.lost, report.unwritten) == (0, {})
    assert fast.held() == slow.held() == {"first": b"x"}


def test_many_are_written_each_whole(back: TieredStore, slow: Moody) -> None:
    objects = {page_key(i): content(str(i), i * 131 % 5000) for i in range(300)}
    for key, data in objects.items():
        back.put([Item(key, [data[:7], data[7:]])])
    report = back.flush()
    assert (report.written, report.waiting) == (300, 0)
    assert slow.held() == objects


def test_settle_writes_what_a_killed_process_left_in_the_fast_tier(tmp_path: Path) -> None:
    url = f"tiered://?fast=file://{tmp_path}/fast&slow=file://{tmp_path}/slow&mode=write-back"
    code = f"""if True:
        import os
        from unikv.registry import open_store
        from unikv.store import Item
        store = open_store({url!r})
        store._moves.down.ask = lambda key: True  # killed before its turn came
        print(store.put([Item(f"key{{i}}", [b"x" * i]) for i in range(300)]).ok, flush=True)
        os._exit(9)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("True", 9)
    slow = FileStore(tmp_path / "slow")
    slow.put([Item("key7", [b"x" * 7])])
    store = open_store(url)
    assert isinstance(store, TieredStore)
    assert store.settle().written == 299
    assert {entry.key for entry in slow.list()} == {f"key{i}" for i in range(300)}
    assert read(slow, "key299", 0, 299) == b"x" * 299
    store.close()
    slow.close()


def test_settle_leaves_nothing_to_complain_of(
    fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of objects whose keys were forgotten, nor of what another wrote meanwhile."""
    monkeypatch.setattr(tiered_report, "NAMED", 3)
    store = tiered(fast, slow, mode="write-back", queue_objects=0, wait_s=1)
    keys = [f"key{n}" for n in range(10)]
    assert store.put([Item(key, [b"new"]) for key in keys]).ok
    slow.put([Item("key0", [b"new"]), Item("key1", [b"old"])])
    report = store.report()
    assert (len(report.unwritten), report.unwritten_unnamed) == (3, 7)
    report = store.settle()
    assert (dict(report.unwritten), report.unwritten_unnamed) == ({}, 0)
    assert slow.held() == dict.fromkeys(keys, b"new")
    assert store.put([Item("later", [b"x"])]).ok
    with pytest.raises(StoreError, match="1 objects are in the fast tier only; 'later': too many"):
        store.close()


def test_closing_tells_how_many_are_left_though_none_can_be_named(
    fast: Moody, slow: Moody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiered_report, "NAMED", 0)
    store = tiered(fast, slow, mode="write-back", queue_objects=0, wait_s=1)
    assert store.put([Item("key", [b"data"])]).ok
    with pytest.raises(StoreError, match=r"1 objects are in the fast tier only\Z"):
        store.close()


# Listing


def test_a_listing_shows_each_object_once(through: TieredStore, fast: Moody, slow: Moody) -> None:
    slow.put([Item(f"b{i}", [b"x" * i]) for i in range(100)])
    fast.put([Item(f"b{i}", [b"x" * i]) for i in range(0, 100, 3)])
    fast.put([Item("a", [b"alone"])])
    entries = list(through.list())
    assert len(entries) == 101
    assert {e.key: e.size for e in entries} == {f"b{i}": i for i in range(100)} | {"a": 5}
    assert [e.key for e in entries[:35]] == [e.key for e in fast.list()]  # the fast tier's first
    assert {e.key for e in through.list("b9")} == {"b9", *(f"b9{i}" for i in range(10))}


def test_what_is_promoted_during_a_listing_shows_once(
    through: TieredStore, fast: Moody, slow: Moody
) -> None:
    slow.put([Item(f"b{i}", [b"x"]) for i in range(10)])
    fast.put([Item("b0", [b"x"])])
    entries = through.list()
    seen = [next(entries).key]
    for i in range(10):
        read(through, f"b{i}", 0, 1)
    until(lambda: len(fast.held()) == 10)
    seen += [entry.key for entry in entries]
    assert sorted(seen) == [f"b{i}" for i in range(10)]


# The URL


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tiered://", ["no fast tier", "%26"]),
        ("tiered://?fast=memory://", ["no slow tier"]),
        ("tiered://host?fast=memory://&slow=memory://", ["names a host"]),
        ("tiered://?fast=memory://&slow=memory://&mode=back", ["write-through or write-back"]),
        ("tiered://?fast=memory://&slow=memory://&wait=-1", ["option wait"]),
        ("tiered://?fast=memory://&slow=nothing://", ["unknown scheme 'nothing'"]),
        ("tiered://?fast=memory://&slow=memory://%3Fx=1", ["unknown option 'x'"]),
        (
            "tiered://?fast=memory://&slow=s3://kv%3Fendpoint=http://h&allow_http=1",
            ["unknown option 'allow_http'", "write & of an inner URL as %26"],
        ),
        ("tiered://?fast=memory://&slow=x://u:SECRET%40h", ["unknown scheme 'x'"]),
    ],
)
def test_a_wrong_url_is_explained(url: str, words: list[str]) -> None:
    with pytest.raises(UrlError) as caught:
        open_store(url)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "SECRET" not in str(caught.value)


def test_a_url_sets_what_there_is_to_set() -> None:
    store = open_store(
        "tiered://?fast=memory://&slow=memory://&mode=write-back&promote_bytes=10&queue_objects=5"
        "&wait=0.5"
    )
    assert isinstance(store, TieredStore)
    assert store._settings == ("write-back", 10, 5, 0.5)
    assert store.opener is None  # nobody else reaches this memory
    assert "write-back" in repr(store)
    store.close()


def test_the_page_names_what_there_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tiered.md").read_text()
    told = set(re.findall(r"`(\w+)`", page))
    assert {field.name for field in fields(TierReport)} <= told
    assert set(tiered_url._OPTIONS) <= told
    for words in ("mode", "promote_bytes", "queue_objects", "wait_s"):
        assert words in page
