"""A store with a bound: what goes and what stays, and what is counted."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, KEYS, evict, make_old, path_of, put, there
from unikv.backends.file import FileStore
from unikv.backends.file_evict_child import Child
from unikv.backends.file_evict_depth import INDEX_AT, MAGIC, UNKNOWN, depth_in
from unikv.backends.file_evict_loop import Loop
from unikv.backends.file_limits import Limits
from unikv.errors import StoreError
from unikv.header import MAGIC as HEADER_MAGIC
from unikv.header import NONE, PAGE_INDEX_OFFSET
from unikv.store import Item, Outcome, Store
from unikv.testing import StoreContract, content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome


class TestBoundedFileStore(StoreContract):
    """A bound that nobody reaches changes no promise."""

    def open(self, folder: Path) -> Store:
        return FileStore(folder, max_bytes=10**9)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder, max_bytes=10**9, min_free=1)


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


# What goes


def test_B86_a_write_counts_as_a_request(root: Path, opened: Callable[..., FileStore]) -> None:
    store = opened(max_bytes=BLOCK * 3 // 2)
    put(store, KEYS[0])
    make_old(store, KEYS[0], 86_400)
    put(store, KEYS[1])
    evict(root, max_bytes=BLOCK * 3 // 2)
    assert there(store) == {KEYS[1]}


def test_B87_a_probe_is_no_request(root: Path, opened: Callable[..., FileStore]) -> None:
    """Probed objects go and read ones stay, though both are of one age."""
    bound = BLOCK * 1000
    store = opened(max_bytes=bound)
    keys = [page_key(i) for i in range(980)]
    put(store, *keys)
    for key in keys:
        make_old(store, key, 7200)
    for _ in range(3):
        store.stat(keys)
        assert all(isinstance(read(store, key, 0, 10), bytes) for key in keys[::100])
    fresh = [page_key(i) for i in range(1000, 1200)]
    assert put(store, *fresh) == [OK] * 200
    evict(root, max_bytes=bound)
    assert set(keys[::100]) | set(fresh) <= there(store)
    assert len(there(store)) <= 980


def test_what_is_put_again_is_requested(root: Path, opened: Callable[..., FileStore]) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS[:3])
    for key in KEYS[:3]:
        make_old(store, key, 7200)
    assert put(store, KEYS[1]) == [EXISTED]
    evict(root, max_bytes=BLOCK * 3 // 2)
    assert there(store) == {KEYS[1]}


def test_a_request_is_noted_once_in_a_while(
    opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=10**9)
    put(store, *KEYS[:2])
    make_old(store, KEYS[0], 3600)
    noted: list[object] = []
    utime = os.utime
    monkeypatch.setattr(os, "utime", lambda *args, **more: noted.append(utime(*args, **more)))
    for _ in range(5):
        assert isinstance(read(store, KEYS[0], 0, 10), bytes)
        assert isinstance(read(store, KEYS[1], 0, 10), bytes)
    assert len(noted) == 1
    assert time.time() - path_of(store, KEYS[0]).stat().st_mtime < 10


def test_a_read_that_cannot_be_noted_is_a_read(
    opened: Callable[..., FileStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(max_bytes=10**9)
    put(store, KEYS[0])
    make_old(store, KEYS[0], 3600)

    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    assert read(store, KEYS[0], 0, BLOCK) == content(KEYS[0], BLOCK)


def test_all_chunks_of_a_page_go_together(root: Path, opened: Callable[..., FileStore]) -> None:
    """Also those of other namespaces, and whichever was requested last counts for all."""
    bound = BLOCK * 4 * 20
    store = opened(max_bytes=10**9)
    chunks = [
        [f"{page_key(i)}_H0", f"{page_key(i)}_H1", key, f"{key}_x"]
        for i, key in enumerate(f"{page_key(i)[:64]}_{'6' * 32}_L0-4" for i in range(25))
    ]
    for page in chunks:
        put(store, *page)
        for key in page:
            make_old(store, key, 7200)
    kept = chunks[3]
    assert isinstance(read(store, kept[2], 0, 10), bytes)
    evict(root, max_bytes=bound)
    left = there(store)
    whole = [len(left.intersection(page)) for page in chunks]
    assert set(whole) == {0, 4}
    assert whole[3] == 4
    assert whole.count(0) == 6


def header(index: int) -> bytes:
    return MAGIC.ljust(INDEX_AT, b"\0") + index.to_bytes(4, "little")


def test_the_header_is_read_where_the_format_has_it(tmp_path: Path) -> None:
    assert (MAGIC, INDEX_AT, UNKNOWN) == (HEADER_MAGIC, PAGE_INDEX_OFFSET, NONE)
    folder = os.open(tmp_path, os.O_RDONLY)
    for name, data, depth in [
        ("known", header(7), 7),
        ("unknown", header(UNKNOWN), None),
        ("short", header(7)[:-1], None),
        ("foreign", b"x" * 200, None),
        ("empty", b"", None),
    ]:
        (tmp_path / name).write_bytes(data)
        assert depth_in(folder, name) == depth
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("known")
    assert [depth_in(folder, name) for name in ("pipe", "link", "none")] == [None] * 3
    os.close(folder)


def test_a_prefix_goes_from_its_tail(root: Path, opened: Callable[..., FileStore]) -> None:
    bound = BLOCK * 30
    store = opened(max_bytes=10**9)
    for depth, key in enumerate(KEYS):
        store.put([Item(key, [header(depth), bytes(1000)])])
        make_old(store, key, 3600 - depth)  # the head was written first
    evict(root, max_bytes=bound)
    left = there(store)
    assert left == set(KEYS[: len(left)])
    assert len(left) == 29


def test_hints_never_go(root: Path, opened: Callable[..., FileStore]) -> None:
    store = opened(max_bytes=10**9)
    hints = [f"ns_{i}" for i in range(20)]
    others = ["ordinary", "another"]
    put(store, *hints, *others, *KEYS[:20])
    for key in hints + others:
        make_old(store, key, 7200)
    evict(root, max_bytes=BLOCK * 30)
    assert set(hints) <= there(store)
    assert there(store).isdisjoint(others)
    loop = evict(root, max_bytes=BLOCK * 10)  # nothing but hints, and still too much
    assert there(store) == set(hints)
    assert loop.turn() > 0


# What is counted


def test_B89_a_restart_counts_what_is_there_and_goes_on(
    root: Path, opened: Callable[..., FileStore]
) -> None:
    """Ten objects, room for ten, one more: one goes; what is foreign stays, a dead's temp goes."""
    first = FileStore(root)  # counts nothing
    put(first, *KEYS[:10])
    for age, key in enumerate(KEYS[:10]):
        make_old(first, key, 100 - age)
    first.close()
    folder = root / KEYS[0][:2] / KEYS[0][2:4]
    foreign = [root / "README", folder / "notes.txt", folder / ".nfs000000000000a", root / "_x"]
    for path in foreign:
        path.write_bytes(b"mine" * 5000)
        os.utime(path, (0, 0))
    (root / ".tmp" / ("0" * 16)).mkdir()
    (root / ".tmp" / ("0" * 16) / "0").write_bytes(b"half")
    bound = BLOCK * 104 // 10
    store = opened(max_bytes=bound)
    usage = store.usage()
    assert (usage.objects, usage.room, usage.foreign, usage.temporary) == (10, 10 * BLOCK, 4, 1)
    assert all(isinstance(read(store, key, 0, BLOCK), bytes) for key in KEYS[:10])
    for age, key in enumerate(KEYS[:10]):
        make_old(store, key, 100 - age)
    assert put(store, KEYS[10]) == [OK]
    evict(root, max_bytes=bound)
    usage = store.usage()
    assert usage[:3] == (10, 10 * BLOCK, 10 * BLOCK)
    assert (usage.foreign, usage.temporary, usage.estimate) == (4, 0, 10 * BLOCK)
    assert (usage.evicted, usage.stuck, usage.fault) == (1, 0, None)
    assert there(store) == set(KEYS[1:11])
    assert all(path.read_bytes() == b"mine" * 5000 for path in foreign)


def test_everything_that_changes_the_room_is_counted(
    opened: Callable[..., FileStore],
) -> None:
    store = opened(max_bytes=10**9)
    other = opened(max_bytes=10**9)

    def check() -> None:
        usage = store.usage()
        assert usage.estimate == usage.room

    put(store, *KEYS[:10], "ns_0", blocks=3)
    check()
    put(other, *KEYS[:5], blocks=1)  # other sizes replace
    check()
    other.put([Item(KEYS[0], [b"x" * 5000])], replace=True)
    check()
    put(other, *KEYS[5:8], blocks=3)  # existed
    check()
    store.delete([*KEYS[4:9], "none"])
    check()
    path_of(store, KEYS[9]).unlink()  # behind our back
    assert store.usage().estimate == store.usage().room + 3 * BLOCK
    evict(Path(store.root), max_bytes=10**9)  # it looks anew
    check()


def test_a_store_without_a_bound_counts_on_demand_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    put(store, *KEYS[:3])
    assert store.usage()[:3] == (3, 3 * BLOCK, 3 * BLOCK)
    assert store.usage().estimate is None
    assert not (tmp_path / ".usage").exists()
    with closing(FileStore(tmp_path, readonly=True)) as reader:
        assert reader.usage().objects == 3


# Several bounds on one root


def test_of_several_bounds_the_smallest_wins(root: Path, opened: Callable[..., FileStore]) -> None:
    large, small = opened(max_bytes=BLOCK * 200), opened(max_bytes=BLOCK * 100)
    keys = [page_key(i) for i in range(150)]
    put(large, *keys)
    evict(root, max_bytes=BLOCK * 200)
    assert len(there(large)) == 150
    evict(root, max_bytes=BLOCK * 100)
    assert len(there(large)) == 97
    put(large, *keys)
    evict(root, max_bytes=BLOCK * 100)
    assert len(there(small)) == 97


def test_while_another_evicts_nobody_else_does(
    root: Path, opened: Callable[..., FileStore]
) -> None:
    store = opened(max_bytes=BLOCK * 10)
    put(store, *KEYS[:10])
    loop = Loop(str(root), Limits(BLOCK * 5))
    assert store._bound
    with store._bound.keeper().ledger.hold():
        assert 0 < loop.turn() < 1
    assert len(there(store)) == 10


# Opening and closing


@pytest.mark.parametrize("options", [{"max_bytes": 0}, {"min_free": -1}, {"max_bytes": -5}])
def test_a_bound_that_is_none_is_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(StoreError, match=r"is (0|-1|-5): want bytes, more than 0"):
        FileStore(tmp_path / "root", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "root").exists()


def test_a_bound_on_a_store_that_is_read_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="read-only, and a bound means to evict: want one of"):
        FileStore(tmp_path, readonly=True, max_bytes=10**9)


def test_closing_leaves_no_record_and_the_count(root: Path) -> None:
    store = FileStore(root, max_bytes=10**9)
    put(store, *KEYS)
    store.close()
    left = sorted(path.name for path in (root / ".usage").iterdir())
    assert left == ["lock", "table"]
    with closing(FileStore(root, max_bytes=10**9)) as again:
        assert again.usage().estimate == 40 * BLOCK
