"""Network file systems: what NFS does otherwise is no object, no hang and no wrong byte."""

import ctypes
import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from unikv.backends import linux
from unikv.backends.file import FileStore
from unikv.backends.file_evict_look import look_at
from unikv.store import Item, Outcome, Span
from unikv.testing import content, page_key, read

OK, EXISTED, MISS, FAILED = Outcome
KEYS = [page_key(i) for i in range(5)]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path)
    store.put([Item(key, [content(key, 100)]) for key in KEYS])
    return store


def test_what_nfs_keeps_of_a_removed_file_is_no_object(store: FileStore) -> None:
    """A file that is removed while it is open lives on as .nfs and its number."""
    folder = Path(store.root, KEYS[0][:2], KEYS[0][2:4])
    silly = folder / ".nfs0000000000a1b2c300000001"
    silly.write_bytes(content(KEYS[0], 100))
    assert sorted(entry.key for entry in store.list()) == sorted(KEYS)
    assert store.usage().foreign == 1
    seen = look_at(store.root, int(KEYS[0][:2], 16))
    assert seen.foreign == 1
    assert set(seen.pages) == {KEYS[0][:64]}
    assert silly.exists()


def test_a_stale_handle_may_pass(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host replaced the file that was just opened: the next try opens the new one."""
    preadv = os.preadv
    calls = iter(range(100))

    def stale(fd: int, views: list[memoryview], at: int) -> int:
        if next(calls) == 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return preadv(fd, views, at)

    spans = [Span(key, 0, 100, [memoryview(bytearray(100))]) for key in KEYS[:3]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", stale)
        outcomes = store.get(spans)
    assert list(outcomes.codes) == [OK, FAILED, OK]
    assert outcomes.errors[1].retryable
    assert outcomes.errors[1].errno == errno.ESTALE
    assert "Stale file handle" in str(outcomes.errors[1])
    assert store.get(spans).ok


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT])
def test_what_may_pass_is_said_so(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("unikv.backends.file_open.try_open", lambda *_args: -number)
    outcomes = store.get([Span(KEYS[0], 0, 1, [memoryview(bytearray(1))])])
    assert outcomes.errors[0].retryable
    assert outcomes.errors[0].errno == number


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_what_stays_is_said_so(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr("unikv.backends.file_open.try_open", lambda *_args: -number)
    outcomes = store.get([Span(KEYS[0], 0, 1, [memoryview(bytearray(1))])])
    assert not outcomes.errors[0].retryable


def test_a_publish_without_renameat2_flags_keeps_what_is_there(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS says EINVAL to RENAME_NOREPLACE: the name is given by a hard link then."""

    def refuse(*_args: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(linux, "_renameat2", refuse)
    items = [Item(key, [content(key, 100)]) for key in [*KEYS, "new"]]
    assert list(store.put(items).codes) == [EXISTED] * 5 + [OK]
    assert read(store, "new", 0, 100) == content("new", 100)
    assert Path(store.root, "_", "new").stat().st_nlink == 1


def test_times_are_the_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is noted as now, whatever that is where the disk is: clocks of hosts differ."""
    given: list[tuple[object, ...]] = []
    utime = os.utime

    def note(*args: object, **more: object) -> None:
        given.append(args[1:] + tuple(more.values()))
        utime(*args, **more)  # type: ignore[arg-type]

    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        store.put([Item(KEYS[0], [b"bytes"])])
        path = next(tmp_path.rglob(KEYS[0]))
        os.utime(path, (1, 1))
        monkeypatch.setattr(os, "utime", note)
        assert read(store, KEYS[0], 0, 5) == b"bytes"
    assert given == [()]
