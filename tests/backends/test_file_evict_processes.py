"""Processes that write, read and evict beneath one root keep its bound and see whole objects."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.backends.evicting import DEPTH, SIZE, WRITERS, key_of
from unikv.backends import file_evict_child
from unikv.backends.file import FileStore
from unikv.backends.file_cells import CELLS
from unikv.store import Item
from unikv.testing import content, page_key

SCRIPT = Path(__file__).with_name("evicting.py")
BLOCK = 4096

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(role: str, max_bytes: int, seed: object) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, SCRIPT, role, tmp_path / "root", str(max_bytes), str(seed)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            stack.callback(process.wait, 20)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            return process

        yield start


def end(process: "subprocess.Popen[str]") -> list[object]:
    out, _ = process.communicate(timeout=20)
    told: list[object] = json.loads(out)
    return told


def room_beneath(root: Path) -> int:
    """Count the room that objects take, from outside."""
    room = 0
    for folder, _, files in os.walk(root):
        if Path(folder).name not in (".usage", ".tmp") and Path(folder).parent.name != ".tmp":
            for name in files:
                with suppress(FileNotFoundError):
                    room += -(-Path(folder, name).stat().st_size // BLOCK) * BLOCK
    return room


def evictors(root: Path) -> list[int]:
    """Return the processes that evict beneath a root."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            if b"file_evict_loop" in line and f'"{root}"'.encode() in line:
                found.append(int(path.parent.name))
    return found


def kill(processes: list[int]) -> bool:
    """Kill the first of some processes, if it is still there."""
    with suppress(ProcessLookupError):
        for process in processes[:1]:
            os.kill(process, signal.SIGKILL)
            return True
    return False


def wait_until(true: Callable[[], object], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def prefixes(there: set[str], written: dict[str, int]) -> list[tuple[int, int]]:
    """Return, of each prefix that its writer finished, pages that are whole and usable ones."""
    found = []
    for seed, finished in written.items():
        for number in range(finished):
            pages = [
                all(key_of(f"{seed} {number}", depth, chunk) in there for chunk in range(2))
                for depth in range(DEPTH)
            ]
            found.append((sum(pages), pages.index(False) if False in pages else DEPTH))
    return found


@pytest.mark.slow
def test_four_writers_and_four_readers_keep_the_bound(start: Start, tmp_path: Path) -> None:
    root, bound = tmp_path / "root", SIZE * 4000
    writers = {str(seed): start("write", bound, seed) for seed in range(WRITERS)}
    readers = [start("read", bound, seed) for seed in range(WRITERS)]
    wait_until(lambda: room_beneath(root) > bound * 96 // 100, 40)
    shares: list[float] = []
    until = time.monotonic() + 8
    while time.monotonic() < until:
        shares.append(room_beneath(root) / bound)
        time.sleep(0.1)
    assert len(evictors(root)) == 1
    read = [end(reader) for reader in readers]
    wrote = {seed: end(writer) for seed, writer in writers.items()}
    assert min(shares) >= 0.95
    assert max(shares) <= 1.05
    for counts, newest in read:
        assert isinstance(counts, dict)
        assert set(counts) <= {"OK", "MISS"}
        assert counts["OK"] > 100
        assert newest
    written: dict[str, int] = {}
    for seed, (codes, finished) in wrote.items():
        assert isinstance(codes, dict)
        assert isinstance(finished, int)
        assert set(codes) == {"OK"}
        written[seed] = finished
    with closing(FileStore(root, max_bytes=bound)) as store:
        there = {entry.key for entry in store.list()}
        usage = store.usage()
    assert usage.evicted > 1000
    assert usage.fault is None
    assert usage.stuck == 0
    assert usage.estimate is not None
    assert abs(usage.estimate - usage.room) <= bound // 100
    # Prefixes are cut from their tails: hardly a page is there that no prefix leads to.
    found = prefixes(there, written)
    assert any(0 < whole < DEPTH for whole, _ in found)
    assert sum(usable for _, usable in found) >= 0.9 * sum(whole for whole, _ in found)
    # Pages go whole: of those that are there at all hardly one lacks a chunk.
    pages: dict[str, int] = {}
    for key in there:
        pages[key[:64]] = pages.get(key[:64], 0) + 1
    assert list(pages.values()).count(1) <= WRITERS + 1
    wait_until(lambda: not evictors(root))


@pytest.mark.slow
def test_two_processes_with_bounds_of_their_own(start: Start, tmp_path: Path) -> None:
    """The smaller wins, while its process lives."""
    root = tmp_path / "root"
    large = start("write", SIZE * 4000, "large")
    wait_until(lambda: room_beneath(root) > SIZE * 2000, 40)
    small = start("write", SIZE * 1500, "small")
    wait_until(lambda: room_beneath(root) < SIZE * 1500, 40)
    shares = []
    for _ in range(20):
        shares.append(room_beneath(root) / (SIZE * 1500))
        time.sleep(0.1)
    assert max(shares) < 1.05
    assert min(shares) > 0.95
    end(small)
    wait_until(lambda: room_beneath(root) > SIZE * 2000, 40)
    end(large)
    wait_until(lambda: not evictors(root))


def test_a_killed_writer_takes_its_evictor_along_and_another_takes_over(
    start: Start, tmp_path: Path
) -> None:
    root, bound = tmp_path / "root", SIZE * 1000
    first = start("write", bound, "first")
    wait_until(lambda: evictors(root))
    (evictor,) = evictors(root)
    second = start("write", bound, "second")
    wait_until(lambda: room_beneath(root) > bound * 9 // 10)
    assert evictors(root) == [evictor]
    first.send_signal(signal.SIGKILL)
    wait_until(lambda: evictors(root) and evictor not in evictors(root))
    wait_until(lambda: room_beneath(root) > bound * 9 // 10)
    assert room_beneath(root) < bound * 105 // 100
    wait_until(lambda: kill(evictors(root)))  # and the process that evicts itself
    time.sleep(0.5)
    assert room_beneath(root) < bound * 105 // 100
    end(second)
    wait_until(lambda: not evictors(root))
    with closing(FileStore(root, max_bytes=bound)) as store:
        usage = store.usage()
        assert usage.estimate is not None
        assert abs(usage.estimate - usage.room) <= bound // 50


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def put(store: FileStore, *seeds: object) -> None:
    keys = [page_key(seed) for seed in seeds]
    assert store.put([Item(key, [content(key, BLOCK)]) for key in keys]).ok


def test_closing_leaves_no_process_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    before, threads = descriptors(), threading.active_count()
    for turn in range(2):
        store = FileStore(tmp_path, max_bytes=10**9)
        put(store, *range(turn, turn + 10))
        wait_until(lambda: evictors(tmp_path))
        store.close()
        assert evictors(tmp_path) == []
    assert threading.active_count() <= threads
    assert descriptors() == before


def test_a_store_that_only_reads_starts_nobody(tmp_path: Path) -> None:
    with closing(FileStore(tmp_path)) as plain:
        put(plain, *range(10))
    with closing(FileStore(tmp_path, max_bytes=10**9)) as store:
        assert None not in store.stat([page_key(i) for i in range(10)])
        assert len(list(store.list())) == 10
        assert evictors(tmp_path) == []


@pytest.mark.parametrize("ending", ["pass", "del store", "store.close()", "os._exit(0)"])
def test_however_a_process_ends_its_evictor_does(tmp_path: Path, ending: str) -> None:
    code = f"""
import os, time
from pathlib import Path
from unikv.backends.file import FileStore
from unikv.store import Item
store = FileStore({str(tmp_path)!r}, max_bytes=10**9)
assert store.put([Item("key", [b"x"])]).ok
time.sleep(0.3)
{ending}
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=20)
    wait_until(lambda: not evictors(tmp_path))


def test_a_forked_writer_counts_for_itself_and_leaves_its_parents_evictor(tmp_path: Path) -> None:
    code = f"""
import os, time
from unikv.backends.file import FileStore
from unikv.backends.file_evict_claim import claim, release
from unikv.backends.file_limits import Limits
from unikv.store import Item

def settle(blocks):  # the process that evicts may be looking around still
    until = time.monotonic() + 15
    while store.usage().estimate != blocks * 4096:
        assert time.monotonic() < until, store.usage()
        time.sleep(0.02)

store = FileStore({str(tmp_path)!r}, max_bytes=10**9)
assert store.put([Item("parent", [b"x"])]).ok
while (lock := claim(store.root, Limits(10**9))) is not None:  # until it has begun
    release(lock)
    time.sleep(0.05)
if os.fork() == 0:
    assert store.put([Item("child", [b"x"])]).ok
    settle(2)
    store.close()
    raise SystemExit(0)  # with all that Python does at exit
assert os.wait()[1] == 0
assert store._bound.keeper().child._process.poll() is None
assert store.put([Item("again", [b"x"])]).ok
settle(3)
assert store.usage().room == 12288
store.close()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=40)
    assert evictors(tmp_path) == []


def test_where_no_process_can_be_started_writers_keep_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/nowhere/python")
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        for i in range(300):
            put(store, i)
        usage = store.usage()
        assert usage.objects <= 102
        assert "No such file or directory" in str(usage.fault)


def test_an_evictor_that_fails_is_named_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_evict_child, "_START", "path = {path!r}; raise SystemExit(7)")
    monkeypatch.setattr(file_evict_child, "_PAUSES_S", (0.05, 0.1))
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 100)) as store:
        assert store._bound
        child = store._bound.keeper().child
        put(store, *range(150))
        assert child._process
        child._process.wait(10)
        child.ensure()
        assert store.usage().fault == "the process that evicts ended with status 7"
        monkeypatch.undo()
        time.sleep(0.2)
        child.ensure()
        wait_until(lambda: store.usage().objects <= 98)
        assert evictors(tmp_path)


def test_an_evictor_whose_root_went_ends(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with closing(FileStore(root, max_bytes=10**9)) as store:
        put(store, 1)
        wait_until(lambda: evictors(root))
        root.rename(tmp_path / "moved")
        wait_until(lambda: not evictors(root))
        assert not root.exists()
        assert not store.put([Item("key", [b"x"])]).ok


def test_a_restart_of_a_full_store_evicts_at_once(tmp_path: Path) -> None:
    """Its ledger is gone, and nobody scans before the first put is done."""
    with closing(FileStore(tmp_path)) as plain:
        put(plain, *range(500))
    with closing(FileStore(tmp_path, max_bytes=BLOCK * 400)) as store:
        put(store, 1000)
        wait_until(lambda: store.usage().objects <= 392)
        reading = store._bound.keeper().ledger.read() if store._bound else None
        assert reading
        assert reading.table.known == CELLS
        assert store.usage().evicted >= 108
