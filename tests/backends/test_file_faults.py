"""Faults of the system fail the item that met them, and leave no file and no descriptor."""

import errno
import gc
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from unikv.backends import file, file_folders, file_write, linux
from unikv.backends.file import FileStore
from unikv.errors import StoreError
from unikv.store import Item, Outcome, Span
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEYS = [page_key(i) for i in range(5)]
ITEMS = [Item(key, [content(key, 100)]) for key in KEYS]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    store = FileStore(tmp_path, durable=True)
    store.put([Item("warm", [b""])])  # its temporary folder is there
    gc.collect()  # stores of other tests
    before = descriptors()
    yield store
    assert descriptors() == before
    store.close()


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def temps(store: FileStore) -> list[Path]:
    return [path for path in Path(store.root, ".tmp").glob("*/*") if path.is_file()]


def fail_once(number: int, call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return a stand-in for a system call that fails the one time, counted from 0."""
    calls = iter(range(1_000_000))

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            raise OSError(number, os.strerror(number))
        return call(*args, **kwargs)

    return stand_in


def fail_put_at(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, at: int, number: int
) -> None:
    monkeypatch.setattr(owner, name, fail_once(number, getattr(owner, name), at))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (os, "open"),
        (os, "pwritev"),
        (os, "fsync"),
        (os, "mkdir"),
        (file_write, "rename_new"),
        (file_write, "try_open"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_full_or_broken_disk_fails_one_put_and_leaves_nothing_of_it(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, number: int
) -> None:
    with monkeypatch.context() as patch:
        fail_put_at(patch, owner, name, at=0, number=number)
        outcomes = store.put(ITEMS)
    assert outcomes.codes == [FAILED, OK, OK, OK, OK]
    assert outcomes.errors[0].errno == number
    assert os.strerror(number) in str(outcomes.errors[0])
    assert KEYS[0] in str(outcomes.errors[0])
    assert read(store, KEYS[0], 0, 100) == MISS
    assert temps(store) == []
    assert store.put(ITEMS).codes == [OK] + [EXISTED] * 4
    assert read(store, KEYS[0], 0, 100) == content(KEYS[0], 100)


def test_a_failed_close_fails_its_put(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def close_late(fd: int) -> None:
        """Close a file that was written to as NFS may: with the error that writing it met."""
        fails = Path(f"/proc/self/fd/{fd}").readlink().name.isdecimal()
        close(fd)
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_late)
        assert store.put(ITEMS[:1]).codes == [FAILED]
    assert read(store, KEYS[0], 0, 100) == MISS
    assert temps(store) == []


def test_a_folder_that_cannot_be_synced_fails_what_lies_in_it(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = file_folders.sync_folder

    def sync_most(root: str, folder: str) -> None:
        if folder == f"{KEYS[1][:2]}/{KEYS[1][2:4]}":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(root, folder)

    monkeypatch.setattr("unikv.backends.file.sync_folder", sync_most)
    outcomes = store.put([*ITEMS[:3], Item(KEYS[1] + "_H1", [b"same folder"])])
    assert outcomes.codes == [OK, FAILED, OK, FAILED]
    assert "sync its folder: Input/output error" in str(outcomes.errors[3])


def test_durable_puts_sync_the_file_first_and_its_folder_after(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    key = page_key("chunks")
    store.put([Item(f"{key}_H{i}", [b"x"]) for i in range(3)])
    # One file, the two folders that were made for it, two more files, the folder of all three.
    assert synced == ["file", "folder", "folder", "file", "file", "folder"]


def test_B67_a_short_and_a_broken_object_fail_alone(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(ITEMS)
    path = next(Path(store.root).rglob(KEYS[1]))
    path.write_bytes(path.read_bytes()[:60])
    spans = [Span(key, 0, 100, [memoryview(bytearray(100))]) for key in KEYS]
    with monkeypatch.context() as patch:
        fail_put_at(patch, os, "preadv", at=1, number=errno.EIO)  # the short one is not read
        outcomes = store.get(spans)
    assert outcomes.codes == [OK, FAILED, FAILED, OK, OK]
    assert "want bytes 0..100, the object has 60 bytes" in str(outcomes.errors[1])
    assert KEYS[1] in str(outcomes.errors[1])
    assert "Input/output error" in str(outcomes.errors[2])
    assert store.get(spans).codes == [OK, FAILED, OK, OK, OK]
    assert store.put(ITEMS).codes == [EXISTED, OK, EXISTED, EXISTED, EXISTED]
    assert store.get(spans).ok


def test_errors_that_are_no_io_errors_propagate(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(ITEMS)

    def fail(*_args: object) -> int:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        patch.setattr(os, "pwritev", fail)
        with pytest.raises(RuntimeError):
            read(store, KEYS[0], 0, 100)
        with pytest.raises(RuntimeError):
            store.put(ITEMS, replace=True)
    assert temps(store) == []
    assert read(store, KEYS[0], 0, 100) == content(KEYS[0], 100)


def test_transfers_that_stop_half_way_go_on(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv, pwritev = os.preadv, os.pwritev

    def some(views: Sequence[memoryview | bytes]) -> list[memoryview]:
        return [memoryview(next(view for view in views if len(view)))[:7]]

    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, some(views), at))
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: pwritev(fd, some(views), at))
    data = content("key", 1000)
    assert store.put([Item("key", [data[:3], b"", data[3:500], data[500:]])]).ok
    out = bytearray(900)
    view = memoryview(out)
    spans = [
        Span("key", 50, 950, [view[:1], view[1:1], view[1:400], view[400:]]),
        Span("key", 0, 1000, [memoryview(bytearray(1000))]),
    ]
    assert store.get(spans).ok
    assert out == data[50:950]
    assert spans[1].into[0] == data


def test_a_disk_that_takes_no_more_bytes_fails_the_put(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda *_args: 0)
        outcomes = store.put(ITEMS[:1])
    assert "wrote 0 of 100 bytes" in str(outcomes.errors[0])
    assert temps(store) == []


def test_an_object_cut_off_while_it_is_read_fails(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(ITEMS[:1])
    path = next(Path(store.root).rglob(KEYS[0]))
    preadv = os.preadv

    def cut_then_read(fd: int, views: Sequence[memoryview], at: int) -> int:
        os.truncate(path, 30)
        return preadv(fd, views, at)

    monkeypatch.setattr(os, "preadv", cut_then_read)
    outcomes = store.get([Span(KEYS[0], 0, 100, [memoryview(bytearray(100))])])
    assert "the object has 30 bytes" in str(outcomes.errors[0])


def test_too_many_open_files_fail_and_are_no_miss(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(ITEMS[:1])
    monkeypatch.setattr("unikv.backends.file_open.try_open", lambda *_args: -errno.EMFILE)
    outcomes = store.get([Span(KEYS[0], 0, 1, [memoryview(bytearray(1))])])
    assert outcomes.codes == [FAILED]
    assert outcomes.errors[0].errno == errno.EMFILE


def test_errors_do_not_hold_the_buffers_of_the_caller(store: FileStore) -> None:
    store.put(ITEMS[:1])
    out = bytearray(200)
    outcomes = store.get([Span(KEYS[0], 0, 200, [memoryview(out)])])
    assert outcomes.codes == [FAILED]
    out.clear()  # BufferError while anybody holds a view


def test_B46_an_object_is_invisible_until_it_is_whole(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev
    seen: list[object] = []

    def look_half_way(fd: int, views: Sequence[bytes], at: int) -> int:
        wrote = pwritev(fd, [views[0][:50]], at) if at == 0 else pwritev(fd, views, at)
        seen.append((read(store, KEYS[0], 0, 100), store.stat(KEYS[:1]), list(store.list("f"))))
        return wrote

    monkeypatch.setattr(os, "pwritev", look_half_way)
    store.put(ITEMS[:1])
    listed = list(store.list("f"))
    assert seen == [(MISS, [None], [entry for entry in listed if entry.key != KEYS[0]])] * 2


@pytest.mark.parametrize(
    ("other", "code"),
    [(b"o" * 100, EXISTED), (b"short", OK), (b"", OK)],
    ids=["whole", "short", "empty"],
)
def test_a_writer_that_is_overtaken_keeps_what_is_whole(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, other: bytes, code: Outcome
) -> None:
    place = Path(store.root, KEYS[0][:2], KEYS[0][2:4], KEYS[0])

    def overtake(source: bytes, target: bytes) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(other)
        linux.rename_new(source, target)

    monkeypatch.setattr(file_write, "rename_new", overtake)
    assert store.put(ITEMS[:1]).codes == [code]
    assert place.read_bytes() == (other if code is EXISTED else content(KEYS[0], 100))
    assert temps(store) == []


def test_a_store_that_cannot_be_asked_is_not_empty(store: FileStore) -> None:
    """Without a descriptor left no size can be told: that is no answer, and may pass."""
    assert store.put(ITEMS).ok
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0] + 20, 256), before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(StoreError, match="Too many open files") as caught:
            store.stat(KEYS)
        assert caught.value.retryable
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert store.stat([*KEYS, "none"]) == [100] * 5 + [None]
    assert store.stat(["none"]) == [None]
    assert store.stat([KEYS[0] + "_none"]) == [None]  # in a folder that is there


def test_a_store_that_lets_nobody_in_is_not_empty() -> None:
    with tempfile.TemporaryDirectory() as root:
        assert FileStore(root).put(ITEMS).ok
        store, user = FileStore(root, readonly=True), os.geteuid()
        Path(root).chmod(0o600)
        if not user:
            os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match="Permission denied"):
                store.stat(KEYS)
            with pytest.raises(StoreError, match="Permission denied"):
                store.stat([*KEYS, "no key!"])
            assert store.stat(["no key!"]) == [None]
        finally:
            os.seteuid(user)
            Path(root).chmod(0o700)


@pytest.mark.parametrize("many", [1, 20])
def test_whoever_may_pass_a_folder_need_not_read_it(many: int) -> None:
    """Of another user's folders of mode 0711 each name can be opened, however many are asked."""
    with tempfile.TemporaryDirectory() as root:
        store = FileStore(root)
        keys = [page_key(0, f"_H{n}") for n in range(many)]
        assert store.put([Item(key, [b"data"]) for key in keys]).ok
        for path in [Path(root), *Path(root).rglob("*")]:
            path.chmod(0o711 if path.is_dir() else 0o644)
        user = os.geteuid()
        reader = FileStore(root, readonly=True)
        if not user:
            os.seteuid(65534)
        try:
            out = [bytearray(4) for _ in keys]
            spans = [Span(key, 0, 4, [memoryview(o)]) for key, o in zip(keys, out, strict=True)]
            assert reader.get(spans).ok
            assert reader.stat(keys) == [4] * many
        finally:
            os.seteuid(user)
        assert out == [b"data"] * many


def test_what_is_there_is_synced_too_where_it_is_to_outlive_a_loss_of_power(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have failed to: a save that finds it must not vouch for it."""
    with monkeypatch.context() as patch:
        patch.setattr(file, "sync_folder", fail_always(errno.EIO))
        assert store.put(ITEMS[:1]).codes == [FAILED]
        found = store.put(ITEMS[:1])
        assert found.codes == [FAILED]
    assert store.put(ITEMS[:1]).codes == [EXISTED]


def fail_always(number: int) -> Callable[..., Any]:
    def stand_in(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return stand_in
