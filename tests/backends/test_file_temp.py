"""Temporary files: a sweep clears what the dead left, and never what a live writer holds."""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unikv.backends import file_temp
from unikv.backends.file import FileStore
from unikv.backends.file_temp import TempFolder
from unikv.errors import StoreError
from unikv.store import Item, Outcome
from unikv.testing import page_key

OK, EXISTED, MISS, FAILED = Outcome


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    gc.collect()
    return FileStore(tmp_path / "root")


@pytest.fixture
def temp(store: FileStore) -> Path:
    return Path(store.root, ".tmp")


def names(temp: Path) -> list[str]:
    return sorted(str(path.relative_to(temp)) for path in temp.rglob("*"))


def leave_dead(temp: Path, name: str, files: int = 2, *, lock: bool = True) -> None:
    """Leave what a killed writer leaves: a folder with files, and a lock that nobody holds."""
    (temp / name).mkdir()
    for number in range(files):
        (temp / name / str(number)).write_bytes(b"half")
    if lock:
        (temp / f"{name}.lock").touch()


def test_nothing_is_made_until_the_first_put(store: FileStore, temp: Path) -> None:
    store.get([])
    store.stat(["key"])
    assert names(temp) == []
    store.put([Item("key", [b"x"])])
    folder, lock = names(temp)
    assert lock == f"{folder}.lock"
    assert len(lock) < 200


def test_a_sweep_clears_what_the_dead_left(store: FileStore, temp: Path) -> None:
    leave_dead(temp, "0" * 16)
    leave_dead(temp, "1" * 16, files=0)
    leave_dead(temp, "2" * 16, files=1, lock=False)
    (temp / f"{'3' * 16}.lock").touch()
    assert store.sweep() == 3
    assert names(temp) == []
    assert store.sweep() == 0


def test_a_sweep_never_touches_a_live_writer(store: FileStore, temp: Path) -> None:
    folder = TempFolder(store.root)
    path = Path(os.fsdecode(folder.new_path()))
    path.write_bytes(b"at work")
    before = names(temp)
    for sweeper in (store, FileStore(store.root)):  # one process, yet two holders
        assert sweeper.sweep() == 0
    code = f"from unikv.backends.file import FileStore; print(FileStore({store.root!r}).sweep())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ran.stdout == b"0\n"
    assert names(temp) == before
    del folder
    assert names(temp) == []


def test_a_writer_swept_before_it_held_its_lock_takes_another(
    store: FileStore, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    swept: list[list[str]] = []

    def sweep_first(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX | fcntl.LOCK_NB and len(swept) < 3:
            monkeypatch.setattr(fcntl, "flock", flock)
            swept.append(names(temp))
            store.sweep()
            monkeypatch.setattr(fcntl, "flock", sweep_first)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    folder = TempFolder(store.root)
    assert [len(seen) for seen in swept] == [1, 1, 1]
    assert Path(os.fsdecode(folder.new_path())).parent.is_dir()
    assert len(names(temp)) == 2


def test_a_writer_that_a_sweep_is_locking_takes_another(
    store: FileStore, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    held: list[int] = []

    def lock_first(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX | fcntl.LOCK_NB and not held:
            held.append(os.open(next(temp.glob("*.lock")), os.O_RDWR))
            flock(held[0], operation)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_first)
    folder = TempFolder(store.root)
    assert len([name for name in names(temp) if name.endswith(".lock")]) == 2
    os.close(held[0])
    assert store.sweep() == 0
    assert len(names(temp)) == 2
    del folder


def test_a_lock_whose_name_is_another_files_is_not_held(temp: Path) -> None:
    path = temp / f"{'0' * 16}.lock"
    path.touch()
    lock, parent = os.open(path, os.O_RDWR), os.open(temp, os.O_RDONLY)
    path.rename(temp / "moved")
    path.touch()
    assert not file_temp._lock(parent, "0" * 16, lock)
    os.close(lock)
    os.close(parent)


def test_no_writer_tries_for_ever(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_temp, "_lock", lambda *_args: False)
    outcomes = store.put([Item("key", [b"x"])])
    assert "100 temporary folders in a row were swept" in str(outcomes.errors[0])


def test_a_sweep_follows_no_link_and_leaves_foreign_names(store: FileStore, temp: Path) -> None:
    outside = temp.parent.parent / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"mine")
    (temp / "notes.txt").write_bytes(b"foreign")
    (temp / "sub").mkdir()
    (temp / ("a" * 16)).symlink_to(outside)
    with pytest.raises(StoreError, match="sweep"):
        store.sweep()
    (temp / ("a" * 16)).unlink()
    (temp / f"{'b' * 16}.lock").symlink_to(outside / "file")
    with pytest.raises(StoreError, match="sweep"):
        store.sweep()
    assert (outside / "file").read_bytes() == b"mine"
    assert {"notes.txt", "sub"} < set(names(temp))


@pytest.mark.parametrize("what", [".tmp", "*"])
def test_a_root_that_somebody_cleared_is_written_to_again(store: FileStore, what: str) -> None:
    store.put([Item(page_key(0), [b"x"])])
    for path in Path(store.root).glob(what):
        shutil.rmtree(path)
    items = [Item(page_key(i), [b"x"]) for i in range(3)]
    expected = [EXISTED, OK, OK] if what == ".tmp" else [OK] * 3
    assert store.put(items).codes == expected
    store.close()
    assert names(Path(store.root, ".tmp")) == []


def test_a_root_that_is_gone_fails_the_put(store: FileStore) -> None:
    store.put([Item("key", [b"x"])])
    shutil.rmtree(store.root)
    outcomes = store.put([Item("key", [b"x"])])
    assert outcomes.codes == [FAILED]
    assert "No such file or directory" in str(outcomes.errors[0])
    assert not Path(store.root).exists()


def test_a_forked_writer_shares_no_names_and_removes_nothing(store: FileStore, temp: Path) -> None:
    code = f"""
import os
from pathlib import Path
from unikv.backends.file import FileStore
from unikv.store import Item

temp = Path({str(temp)!r})
store = FileStore(temp.parent)
assert store.put([Item("parent", [b"x"])]).ok
mine = set(temp.iterdir())
if os.fork() == 0:
    assert store.put([Item("child", [b"x"])]).ok
    assert len(set(temp.iterdir()) - mine) == 2
    raise SystemExit(0)  # with all that Python does at exit
assert os.wait()[1] == 0
assert set(temp.iterdir()) == mine
assert FileStore(temp.parent).sweep() == 0
assert store.put([Item("again", [b"x"])]).ok
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(temp) == []
    assert store.stat(["parent", "child", "again"]) == [1, 1, 1]


def test_threads_that_begin_at_once_leave_one_folder(store: FileStore, temp: Path) -> None:
    items = [Item(page_key(i), [b"x" * 1000]) for i in range(64)]
    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda item: store.put([item]), items))
    assert all(outcome.ok for outcome in outcomes)
    gc.collect()
    assert len(names(temp)) == 2


@pytest.mark.parametrize("end", ["store.close()", "del store", "pass", "raise SystemExit"])
def test_a_writer_that_ends_leaves_nothing(store: FileStore, temp: Path, end: str) -> None:
    code = (
        "from unikv.backends.file import FileStore; from unikv.store import Item\n"
        f"store = FileStore({store.root!r}); assert store.put([Item('key', [b'x'])]).ok\n{end}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(temp) == []


def test_a_closed_store_sweeps_no_more(store: FileStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.sweep()


def test_a_file_system_without_locks_is_refused_at_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_fd: int, _operation: int) -> None:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StoreError, match=r"a folder that takes locks.*not implemented"):
        FileStore(tmp_path / "root")
