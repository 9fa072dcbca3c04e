"""Direct I/O: the same bytes on disk and in memory as through the page cache, or a note why not."""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unikv.backends import file_direct, linux
from unikv.backends.file import FileStore
from unikv.backends.file_direct import Direct
from unikv.backends.file_names import path_of
from unikv.store import Item, Outcome, Span, Store
from unikv.testing import StoreContract, content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEY = page_key(0)
BLOCK = 4096
ARENA = 4 << 20


class TestDirectFileStore(StoreContract):
    def open(self, folder: Path) -> Store:
        return FileStore(folder, direct=True)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder)


class TestDirectBoundedFileStore(StoreContract):
    def open(self, folder: Path) -> Store:
        return FileStore(folder, direct=True, durable=True, max_bytes=10**9)

    def open_again(self, store: Store, folder: Path) -> Store:  # noqa: ARG002
        return FileStore(folder, direct=True)


class TestDirectFileStoreWithLargeSectors(StoreContract):
    """As on a disk that takes nothing smaller than 4 KiB."""

    @pytest.fixture(autouse=True)
    def with_large_sectors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_direct, "_SECTORS", (BLOCK,))

    def open(self, folder: Path) -> Store:
        return FileStore(folder, direct=True)


class TestDirectFileStoreWhereNobodyTakesIt(StoreContract):
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_direct, "_SECTORS", (0,))

    def open(self, folder: Path) -> Store:
        return FileStore(folder, direct=True)


@pytest.fixture(scope="module")
def arena() -> memoryview:
    """Memory that begins at a page, as the client's arena does."""
    return memoryview(mmap.mmap(-1, ARENA))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with closing(FileStore(tmp_path, direct=True)) as store:
        yield store
        assert store.direct_note is None


def on_disk(store: FileStore, key: str) -> bytes:
    return Path(os.fsdecode(path_of(store.root, key))).read_bytes()


class Calls:
    """Notes what the kernel is asked to move past the page cache, and what not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.direct: list[int] = []
        self.buffered: list[int] = []
        for name in ("preadv", "pwritev"):
            monkeypatch.setattr(os, name, self.noting(getattr(os, name)))

    def noting(self, call: Callable[..., int]) -> Callable[..., int]:
        def noted(fd: int, views: Sequence[memoryview], at: int) -> int:
            done = call(fd, views, at)
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            (self.direct if flags & os.O_DIRECT else self.buffered).append(done)
            return done

        return noted


def test_an_object_from_an_aligned_slot_moves_straight(
    store: FileStore, arena: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Header of its own, payload in a slot, description behind: one call, and one for the tail."""
    header, description = content("header", 1024), content("description", 700)
    payload = arena[1024 : 1024 + 65536]
    payload[:] = content("payload", 65536)
    calls = Calls(monkeypatch)
    assert store.put([Item(KEY, [header, payload, description])]).ok
    size = 1024 + 65536 + 700
    assert calls.direct == [size // BLOCK * BLOCK]
    assert calls.buffered == [size % BLOCK]
    assert on_disk(store, KEY) == header + bytes(payload) + description
    slot = arena[1 << 20 :][: 1024 + 65536]
    calls.direct.clear()
    calls.buffered.clear()
    assert store.get([Span(KEY, 0, 1024 + 65536, [slot])]).ok
    assert slot == header + bytes(payload)
    assert calls.direct == [1024 + 65536]
    assert calls.buffered == []


def test_a_range_is_read_straight_where_its_slot_lies_as_it_does(
    store: FileStore, arena: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(KEY, 1 << 20)
    store.put([Item(KEY, [data])])
    calls = Calls(monkeypatch)
    for start, stop in [(512, 9000), (1000, 300_000), (5, 1 << 20), (700_001, 900_000)]:
        slot = arena[4096 + start % 512 :][: stop - start]
        assert store.get([Span(KEY, start, stop, [slot])]).ok
        assert slot == data[start:stop]
    assert len(calls.direct) == 4
    assert calls.buffered == []


def test_a_range_that_lies_otherwise_comes_by_a_bounce(
    store: FileStore, arena: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = content(KEY, (5 << 19) + 77)
    store.put([Item(KEY, [data])])
    calls = Calls(monkeypatch)
    slot = arena[1:][: (5 << 19) - 3]
    assert store.get([Span(KEY, 80, 80 + len(slot), [slot])]).ok
    assert slot == data[80:]
    assert len(calls.direct) == 3  # of 1 MiB at most
    assert calls.buffered == []


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileStore, FileStore]]:
    folder = tmp_path_factory.mktemp("twins")
    with (
        closing(FileStore(folder / "direct", direct=True)) as direct,
        closing(FileStore(folder / "plain")) as plain,
    ):
        yield direct, plain
        assert direct.direct_note is None


CUTS = st.lists(st.integers(0, 40_000), max_size=6)
PLACES = st.lists(st.tuples(st.integers(0, 1500), st.booleans()), min_size=7, max_size=7)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CUTS, PLACES, st.integers(0, 2**32), st.data())
def test_whatever_lies_where_the_bytes_are_the_same(
    twins: tuple[FileStore, FileStore],
    arena: memoryview,
    sizes: list[int],
    places: list[tuple[int, bool]],
    seed: int,
    data: st.DataObject,
) -> None:
    """Buffers of any size anywhere, writable or not; ranges of any size to anywhere."""
    key = page_key(seed)
    buffers: list[memoryview] = []
    at = 0
    for i, (size, (place, readonly)) in enumerate(zip(sizes, places, strict=False)):
        at += place
        view = arena[at : at + size]
        view[:] = content(f"{seed} {i}", size)
        at += size
        buffers.append(view.toreadonly() if readonly else view)
    whole = b"".join(buffers)
    for store in twins:
        assert list(store.put([Item(key, buffers)], replace=True).codes) == [OK]
        assert on_disk(store, key) == whole
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    cut = data.draw(st.integers(0, stop - start))
    arena[:] = bytes(ARENA)
    into = arena[places[0][0] :][: stop - start]
    assert twins[0].get([Span(key, start, stop, [into[:cut], into[cut:]])]).ok
    assert into == whole[start:stop]
    assert not any(arena[places[0][0] + stop - start :][:4096])
    assert not any(arena[: places[0][0]])


def test_more_buffers_than_one_call_takes(store: FileStore, arena: memoryview) -> None:
    buffers = [arena[i * 1024 : i * 1024 + 512] for i in range(3000)]
    for i, buffer in enumerate(buffers):
        buffer[:] = content(str(i), 512)
    assert store.put([Item(KEY, buffers)]).ok
    assert on_disk(store, KEY) == b"".join(buffers)


def test_threads_have_bounces_of_their_own(store: FileStore) -> None:
    keys = [page_key(i) for i in range(64)]

    def move(key: str) -> bool:
        data = content(key, 300_001)
        return store.put([Item(key, [data])]).ok and read(store, key, 3, 300_000) == data[3:300_000]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(move, keys))


def test_a_forked_process_has_a_bounce_of_its_own(store: FileStore) -> None:
    store.put([Item(KEY, [content(KEY, 100_000)])])
    assert store._direct
    parent = store._direct._bounce()
    parent[:4] = b"mine"
    child = os.fork()
    if child == 0:
        os._exit(0 if read(store, KEY, 1, 99_999) == content(KEY, 100_000)[1:99_999] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(parent[:4]) == b"mine"


def refuse_direct(monkeypatch: pytest.MonkeyPatch, smallest: int) -> None:
    """Let the kernel take sectors of so many bytes and no smaller ones, for direct I/O."""

    def picky(call: Callable[..., int]) -> Callable[..., int]:
        def checked(fd: int, views: Sequence[Any], at: int) -> int:
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
                for view in views:
                    address = (
                        0 if view.readonly else ctypes.addressof(ctypes.c_char.from_buffer(view))
                    )
                    if (address | view.nbytes | at) % smallest:
                        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return call(fd, views, at)

        return checked

    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, picky(getattr(os, name)))


def test_a_disk_of_large_sectors_is_learned(
    tmp_path: Path, arena: memoryview, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch, BLOCK)
    with closing(FileStore(tmp_path, direct=True)) as store:
        arena[:200_000] = content(KEY, 200_000)
        assert store.put([Item(KEY, [b"head" * 128, arena[512:200_000]])]).ok
        assert on_disk(store, KEY) == b"head" * 128 + bytes(arena[512:200_000])
        assert store._direct
        assert store._direct.sector == BLOCK
        assert store.direct_note is None
        slot = arena[300 * 1024 + 512 :][:100_000]
        assert store.get([Span(KEY, 512, 100_512, [slot])]).ok
        assert slot == arena[512:100_512]


def test_a_file_system_that_takes_no_sectors_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch, 1 << 40)
    with closing(FileStore(tmp_path, direct=True)) as store:
        assert store.direct_note is None
        assert store.put([Item(KEY, [content(KEY, 50_000)])]).ok
        assert read(store, KEY, 0, 50_000) == content(KEY, 50_000)
        assert store.direct_note == (
            "through the page cache: its file system takes no sectors of 512 or 4096 bytes"
        )


@pytest.mark.parametrize("first", ["put", "get"])
def test_a_file_system_that_opens_none_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    with closing(FileStore(tmp_path)) as plain:
        plain.put([Item(KEY, [content(KEY, 50_000)])])
    call, open_ = linux.try_open, os.open

    def try_open(path: bytes, how: Any, at: int) -> int:
        return -errno.EINVAL if how.flags & os.O_DIRECT else call(path, how, at)

    def refuse(path: Any, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_DIRECT == os.O_DIRECT:
            os.close(open_(path, flags & ~os.O_DIRECT, *rest, **more))  # some make it first
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return open_(path, flags, *rest, **more)

    monkeypatch.setattr(file_direct, "try_open", try_open)
    monkeypatch.setattr(os, "open", refuse)
    with closing(FileStore(tmp_path, direct=True)) as store:
        if first == "put":
            assert store.put([Item("new", [b"x" * 9000])]).ok
        assert read(store, KEY, 0, 50_000) == content(KEY, 50_000)
        assert store.direct_note
        assert "opens no file with O_DIRECT" in store.direct_note
        assert store.put([Item("other", [b"y" * 9000])]).ok


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hosts")])
def test_what_is_no_object_is_no_reason_to_give_up(
    store: FileStore, make: Callable[[Path], object]
) -> None:
    path = Path(os.fsdecode(path_of(store.root, KEY)))
    path.parent.mkdir(parents=True)
    make(path)
    assert read(store, KEY, 0, 1) == FAILED
    assert read(store, KEY, 0, 0) == FAILED
    assert store.stat([KEY]) == [None]


def test_other_errors_are_errors(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put([Item(KEY, [content(KEY, 50_000)])])

    def fail(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        patch.setattr(os, "pwritev", fail)
        assert read(store, KEY, 0, 50_000) == FAILED
        assert list(store.put([Item("new", [bytes(9000)])]).codes) == [FAILED]
    assert read(store, KEY, 0, 50_000) == content(KEY, 50_000)


def test_an_object_cut_off_while_it_is_read_fails(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([Item(KEY, [content(KEY, 50_000)])])
    preadv = os.preadv
    path = Path(os.fsdecode(path_of(store.root, KEY)))

    def cut_first(fd: int, views: Sequence[memoryview], at: int) -> int:
        os.truncate(path, 20_000)
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "preadv", cut_first)
    outcomes = store.get([Span(KEY, 0, 50_000, [memoryview(bytearray(50_000))])])
    assert "the object has 20000 bytes" in str(outcomes.errors[0])


def test_a_store_without_it_has_no_note(tmp_path: Path) -> None:
    assert FileStore(tmp_path).direct_note is None
    assert Direct().note is None
