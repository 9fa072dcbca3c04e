"""What lies in `.usage`, in its place, or nowhere: no put fails for it, and the bound is kept."""

import errno
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends.bounds import BLOCK, put
from unikv.backends import file_evict_child, file_evict_ledger, file_evict_record
from unikv.backends.file import FileStore
from unikv.backends.file_cells import CELLS
from unikv.backends.file_evict_child import Child
from unikv.backends.file_evict_loop import Loop
from unikv.backends.file_evict_place import USAGE
from unikv.backends.file_evict_reckon import Reckoning
from unikv.backends.file_limits import Limits
from unikv.store import Outcome
from unikv.testing import page_key

FIT = 200
BOUND = FIT * BLOCK
HEX = "0123456789abcdef"


def room_beneath(root: Path) -> int:
    """Count the room that objects take, from outside."""
    with closing(FileStore(root)) as plain:
        return plain.usage().room


def wait_until(true: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def put_many(store: FileStore, seed: str, *, many: int = 2 * FIT) -> float:
    """Put objects, each of which must be taken; return what share of the bound was used at most."""
    most = 0
    for number in range(many):
        assert put(store, page_key(f"{seed} {number}")) == [Outcome.OK]
        if number % 10 == 0:
            most = max(most, room_beneath(Path(store.root)))
    return most / BOUND


def remove(usage: Path) -> None:
    shutil.rmtree(usage)


def clear(usage: Path) -> None:
    for path in usage.iterdir():
        path.unlink(missing_ok=True)  # whoever evicts is at work there


def lose_the_table(usage: Path) -> None:
    (usage / "table").unlink()
    (usage / "table").mkdir()


def put_a_file(usage: Path) -> None:
    shutil.rmtree(usage)
    usage.write_bytes(b"mine")


def put_a_link(usage: Path) -> None:
    usage.rename(usage.parent.parent / "elsewhere")
    usage.symlink_to(usage.parent.parent / "elsewhere")


def put_a_pipe(usage: Path) -> None:
    shutil.rmtree(usage)
    os.mkfifo(usage)


def bind(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as end:
        there = os.open(path.parent, os.O_PATH)  # the path itself may be longer than names can be
        end.bind(f"/proc/self/fd/{there}/{path.name}")
        os.close(there)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    random.seed(0)
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> Iterator[FileStore]:
    with closing(FileStore(root, max_bytes=BOUND)) as store:
        yield store


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody evicts but writers."""
    monkeypatch.setattr(Child, "ensure", lambda _self: None)


# Nothing there


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("lose", [remove, clear, lose_the_table])
@pytest.mark.parametrize("full", [0.5, 1])
def test_writers_alone_keep_the_bound_though_the_ledger_goes(
    root: Path, store: FileStore, lose: Callable[[Path], None], full: float
) -> None:
    put_many(store, "first", many=int(FIT * full))
    lose(root / USAGE)
    assert 0.9 < put_many(store, "second") <= 1.1
    assert (root / USAGE).is_dir()


@pytest.mark.parametrize("lose", [remove, clear, lose_the_table])
@pytest.mark.parametrize("full", [0.5, 1])
def test_a_ledger_that_goes_is_made_again_and_eviction_goes_on(
    root: Path, store: FileStore, lose: Callable[[Path], None], full: float
) -> None:
    put_many(store, "first", many=int(FIT * full))
    time.sleep(1)  # whoever evicts may be about to
    keeper = store._bound.keeper() if store._bound else None
    assert keeper
    first = keeper.child._process
    assert first
    lose(root / USAGE)
    assert put_many(store, "second") <= 1.1

    def is_well() -> bool:
        put(store, page_key(time.monotonic()))
        reading, usage = keeper.ledger.read(), store.usage()
        return reading.table.known == CELLS and usage.fault is None and usage.room < 0.99 * BOUND

    wait_until(is_well)
    usage = store.usage()
    assert usage.estimate is not None
    assert abs(usage.estimate - usage.room) <= BOUND // 20
    assert keeper.child._process
    assert keeper.child._process.poll() is None
    if lose is not lose_the_table:  # its claim was gone: else two would be at it by now
        assert first.returncode is not None


def test_opening_makes_again_what_was_removed_before_a_fork_could_see_it(root: Path) -> None:
    with closing(FileStore(root, max_bytes=BOUND)) as store:
        put_many(store, "parent", many=10)
        put_a_file(root / USAGE)
        child = os.fork()
        if child == 0:
            told = 1
            try:
                fine = put(store, *map(page_key, range(20))) == [Outcome.OK] * 20
                fine &= store.delete([page_key(0)]).ok
                told = 0 if fine and store.usage().fault else 2
            finally:
                os._exit(told)
        assert os.waitpid(child, 0)[1] == 0


# Something else in its place


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("plant", [put_a_file, put_a_link, put_a_pipe])
@pytest.mark.parametrize("full", [0.5, 1])
def test_with_something_in_its_place_writers_keep_the_bound_and_say_so(
    root: Path, store: FileStore, plant: Callable[[Path], None], full: float
) -> None:
    put_many(store, "first", many=int(FIT * full))
    plant(root / USAGE)
    beyond = sorted((root.parent / "elsewhere").glob("*"))
    before = (root / USAGE).lstat()
    assert 0.9 < put_many(store, "second") <= 1.1
    usage = store.usage()
    assert usage.estimate is None
    assert ".usage cannot be used, and writers evict by themselves: " in str(usage.fault)
    assert os.path.samestat((root / USAGE).lstat(), before)  # foreign: nobody touches it
    assert sorted((root.parent / "elsewhere").glob("*")) == beyond
    (root / USAGE).unlink()
    assert 0.9 < put_many(store, "third") <= 1.02
    assert store.usage().fault is None


def test_whoever_evicts_says_why_it_cannot(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileStore(root, max_bytes=BOUND).close()
    put_a_file(root / USAGE)
    monkeypatch.setattr(file_evict_child, "claim", lambda *_: 0)  # as if it was right a moment ago
    monkeypatch.setattr(file_evict_child, "release", lambda _lock: None)
    monkeypatch.setattr(file_evict_child, "_PAUSES_S", (0.0, 0.0))
    child = Child(str(root), Limits(BOUND))
    child.ensure()
    assert child._process
    assert child._process.wait(20) == 3
    child._pause()
    assert "ended with status 3: [Errno 20] Not a directory" in str(child.fault)


@pytest.mark.usefixtures("alone")
def test_without_a_ledger_writers_see_what_others_store(root: Path, store: FileStore) -> None:
    with closing(FileStore(root, max_bytes=BOUND)) as other:
        put_a_file(root / USAGE)
        for number in range(2 * FIT):
            assert put(store, page_key(f"one {number}")) == [Outcome.OK]
            assert put(other, page_key(f"other {number}")) == [Outcome.OK]
            assert number % 20 or room_beneath(root) <= 1.3 * BOUND  # the other is seen at looks


def test_where_no_table_can_be_written_what_is_too_much_still_goes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: then it has to."""
    with closing(FileStore(root, max_bytes=10 * BOUND)) as large:
        put_many(large, "some", many=2 * FIT)

    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_evict_ledger, "write_file", refuse)
    loop = Loop(str(root), Limits(BOUND))
    for _ in range(100):
        loop.turn()
    assert 0.9 * BOUND < room_beneath(root) <= 0.98 * BOUND


# Odd things in it


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, bind, lambda path: path.symlink_to("/tmp")])
@pytest.mark.parametrize(
    "names",
    [
        [HEX, f"{HEX}.new"],
        ["table"],
        ["table.new"],
        ["lock"],
        [f"limits-{BOUND}-0", "limits-1-0", "limits-0-0"],
    ],
)
def test_odd_things_stop_nobody_and_nobody_touches_them(
    root: Path, make: Callable[[Path], None], names: list[str]
) -> None:
    FileStore(root, max_bytes=BOUND).close()
    odd = []
    for name in names:
        (root / USAGE / name).unlink(missing_ok=True)
        make(root / USAGE / name)
        odd.append((root / USAGE / name).lstat().st_ino)
    with closing(FileStore(root, max_bytes=BOUND)) as store:
        assert put_many(store, "some") <= 1.1
        wait_until(lambda: store.usage().objects <= 0.98 * FIT)
        usage = store.usage()
        assert usage.fault is None
        assert usage.estimate is not None
        assert abs(usage.estimate - usage.room) <= BOUND // 20
        assert store._bound
        assert store._bound.keeper().child._process
        there = {path.lstat().st_ino for path in (root / USAGE).iterdir()}
        assert set(odd) <= there  # under whatever name


# What cannot be counted


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_where_no_record_can_be_written_the_bound_is_kept_and_the_count_heals(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put_many(store, "first", many=FIT // 2)

    def refuse(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(file_evict_record, "write_all", refuse)  # no new one
        patch.setattr(file_evict_record.Record, "_add", refuse)
        assert 0.9 < put_many(store, "second") <= 1.1
        assert "writers evict by themselves" in str(store.usage().fault)
    assert put(store, page_key("more")) == [Outcome.OK]
    assert store._bound
    assert store._bound.keeper().ledger.read().table.known < CELLS  # somebody is to look at those
    assert put_many(store, "third") <= 1.02


def test_a_reckoning_is_what_lies_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(FileStore(root)) as plain:
        put(plain, *map(page_key, range(100)), *(f"other{i}" for i in range(10)), blocks=2)
        monkeypatch.setattr("unikv.backends.file_evict_reckon._LEAST_S", 10)
        reckoning = Reckoning(str(root))
        assert reckoning.read() == 220 * BLOCK
        plain.delete([page_key(0)])
        reckoning.add(-2 * BLOCK)
        reckoning.add(BLOCK)
        assert reckoning.read() == 219 * BLOCK  # no look so soon
        put(plain, *map(page_key, range(100, 3000)), blocks=2)
        monkeypatch.setattr("unikv.backends.file_evict_reckon._OBJECTS", 1000)
        assert abs(Reckoning(str(root)).read() / (3009 * 2 * BLOCK) - 1) < 0.15
