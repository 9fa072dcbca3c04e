"""A store with a bound in trouble: files that stay, clocks that lie, disks that are full."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, KEYS, evict, make_old, path_of, put, there
from unikv.backends import file_write
from unikv.backends.file import FileStore
from unikv.backends.file_evict_child import Child
from unikv.backends.vector import write_from
from unikv.store import Item, Outcome
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a root beneath which only the test evicts."""
    monkeypatch.setattr(Child, "ensure", lambda _self: None)
    return tmp_path / "root"


@pytest.fixture
def opened(root: Path) -> Iterator[Callable[..., FileStore]]:
    stores: list[FileStore] = []

    def opened(**options: int) -> FileStore:
        stores.append(FileStore(root, **options))  # type: ignore[arg-type]
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def test_a_file_that_cannot_be_removed_is_skipped_and_counted(
    root: Path, opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS)
    stuck = set(KEYS[:10])
    for key in stuck:
        make_old(store, key, 7200)
    unlink = os.unlink

    def refuse(name: str, **more: int) -> None:
        if name in stuck:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(name, **more)

    monkeypatch.setattr(os, "unlink", refuse)
    evict(root, max_bytes=BLOCK * 20)
    assert stuck < there(store)
    assert len(there(store)) == 19
    assert store.usage().stuck == 10  # each was tried once
    stuck.update(there(store))
    put(store, *[page_key(i) for i in range(100, 103)])
    stuck.update(there(store))
    loop = evict(root, max_bytes=BLOCK * 20)
    assert min(loop.turn() for _ in range(5)) > 0  # nothing can go: it rests


def test_a_page_that_was_requested_since_the_sample_stays(
    root: Path, opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS)
    for key in KEYS:
        make_old(store, key, 7200)
    read_at_last: list[str] = []
    listdir = os.listdir

    def request_first(folder: int) -> list[str]:
        names = listdir(folder)
        for key in set(KEYS[:3]).intersection(names) - set(read_at_last):
            assert isinstance(read(store, key, 0, 1), bytes)
            read_at_last.append(key)
        return names

    monkeypatch.setattr(os, "listdir", request_first)
    evict(root, max_bytes=BLOCK * 20)
    assert read_at_last
    assert set(read_at_last) <= there(store)


def test_what_was_requested_in_the_future_ages_from_now(
    root: Path, opened: Callable[..., FileStore]
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS)
    make_old(store, KEYS[0], -10 * 365 * 86_400)
    evict(root, max_bytes=BLOCK * 20)
    assert abs(time.time() - path_of(store, KEYS[0]).stat().st_mtime) < 100


def test_an_object_larger_than_the_bound_is_refused(opened: Callable[..., FileStore]) -> None:
    store = opened(max_bytes=2 * BLOCK)
    outcomes = store.put([Item("big", [bytes(2 * BLOCK + 1)]), Item("fits", [bytes(2 * BLOCK)])])
    assert list(outcomes.codes) == [FAILED, OK]
    assert str(outcomes.errors[0]).endswith("the object has 8193 bytes, and max_bytes is 8192")


def test_writers_that_outrun_eviction_evict_themselves(
    opened: Callable[..., FileStore],
) -> None:
    """Here nobody else does."""
    store = opened(max_bytes=BLOCK * 50)
    keys = [page_key(i) for i in range(300)]
    for key in keys:
        assert put(store, key) == [OK]
        assert len(there(store)) <= 50
    assert set(keys[-10:]) <= there(store)
    assert store.usage().evicted >= 248


def test_a_store_that_is_full_for_good_says_so(
    opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=BLOCK * 10)
    put(store, *KEYS[:10])

    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        codes = put(store, *KEYS[10:30])
        outcomes = store.put([Item("more", [bytes(BLOCK)])])
    assert codes[-1] == FAILED
    assert "the store is full" in str(outcomes.errors[0])
    assert "nothing could be evicted" in str(outcomes.errors[0])
    assert len(there(store)) <= 12
    assert read(store, KEYS[0], 0, BLOCK) == content(KEYS[0], BLOCK)


def fill_disk(monkeypatch: pytest.MonkeyPatch, times: int, number: int) -> list[int]:
    """Let the disk take no byte for so many writes; return the list of refused writes."""
    refused: list[int] = []
    write = write_from

    def full(fd: int, buffers: object, size: int) -> None:
        if len(refused) < times:
            refused.append(size)
            raise OSError(number, os.strerror(number))
        write(fd, buffers, size)  # type: ignore[arg-type]

    monkeypatch.setattr(file_write, "write_from", full)
    return refused


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_B96_a_disk_that_is_full_once_is_made_room_on(
    opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS[:20])
    refused = fill_disk(monkeypatch, 1, number)
    assert put(store, "new", blocks=5) == [OK]
    assert len(refused) == 1
    assert 5 <= store.usage().evicted <= 10
    assert read(store, "new", 0, 5 * BLOCK) == content("new", 5 * BLOCK)


def test_B96_a_disk_that_stays_full_fails_the_put_and_keeps_the_rest(
    opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS)
    with monkeypatch.context() as patch:
        refused = fill_disk(patch, 10**9, errno.ENOSPC)
        assert put(store, "new") == [FAILED]
        assert len(refused) == 2  # one retry
        evicted = store.usage().evicted
        assert 1 <= evicted <= 2
        assert put(store, *(f"more{i}" for i in range(100))) == [FAILED] * 100
        assert len(refused) == 102  # no retry, and nothing goes for it
        assert store.usage().evicted == evicted
    kept = [key for key in KEYS if key in there(store)]
    assert len(kept) == len(KEYS) - evicted
    assert all(read(store, key, 0, BLOCK) == content(key, BLOCK) for key in kept)
    assert put(store, "new") == [OK]


def test_B96_without_a_bound_a_full_disk_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    put(store, *KEYS)
    fill_disk(monkeypatch, 1, errno.ENOSPC)
    outcomes = store.put([Item("new", [b"x"])])
    assert outcomes.errors[0].errno == errno.ENOSPC
    assert len(there(store)) == len(KEYS)


def free(monkeypatch: pytest.MonkeyPatch, store: FileStore, disk: int) -> None:
    """Let the disk of a store have so many bytes for it alone."""
    statvfs = os.statvfs

    def shrunk(path: str) -> os.statvfs_result:
        found = list(statvfs(path))
        room = sum(-(-entry.size // BLOCK) for entry in store.list())
        found[1], found[4] = BLOCK, disk // BLOCK - room  # f_frsize, f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", shrunk)


def test_a_floor_of_free_space_is_kept(
    root: Path, opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(min_free=BLOCK * 32)
    put(store, *KEYS)
    free(monkeypatch, store, BLOCK * 60)
    evict(root, min_free=BLOCK * 32)
    assert len(there(store)) == 60 - 32 - 2
    put(store, *KEYS[:35])
    evict(root, min_free=BLOCK * 32, max_bytes=BLOCK * 10)
    assert len(there(store)) == 9


def test_a_floor_waits_for_blocks_that_come_free_later(
    root: Path, opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody still reads what was removed: to remove more at once would cost the whole cache."""
    store = opened(min_free=BLOCK * 32)
    put(store, *KEYS)
    found = list(os.statvfs(root))
    found[1], found[4] = BLOCK, 30  # f_frsize, f_bavail, and so it stays
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(found))
    loop = evict(root, min_free=BLOCK * 32)
    assert len(there(store)) == 40 - 2 - 2
    assert loop.turn() > 0
    assert len(there(store)) == 40 - 2 - 2
    monkeypatch.setattr("unikv.backends.file_evict_loop.time.monotonic", lambda: 10**9)
    loop.turn()
    assert len(there(store)) == 40 - 4 - 4
