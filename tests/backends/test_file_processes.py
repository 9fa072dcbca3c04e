"""Processes that write beneath one root at once, killed at random or not, do no harm."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from unikv.backends.file import FileStore
from unikv.testing import read

SCRIPT = Path(__file__).with_name("writers.py")
SPEC = spec_from_file_location("writers", SCRIPT)
assert SPEC
assert SPEC.loader
writers = module_from_spec(SPEC)
SPEC.loader.exec_module(writers)

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(role: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, SCRIPT, role, tmp_path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            stack.callback(process.wait, 20)
            stack.enter_context(process)
            assert line_of(process) == "ready"
            return process

        yield start


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")


def check_objects(store: FileStore) -> int:
    """Check every visible object from end to end; return how many there were."""
    seen = 0
    for entry in store.list():
        assert entry.size == writers.size_of(entry.key)
        data = read(store, entry.key, 0, entry.size)
        if isinstance(data, bytes):  # else deleted meanwhile
            assert writers.is_whole(entry.key, data), f"{entry.key} is torn"
            seen += 1
    return seen


def test_two_processes_that_save_the_same_keys_both_succeed(start: Start, tmp_path: Path) -> None:
    processes = [start("save") for _ in range(3)]
    for process in processes:
        tell(process, "go")
    counts = [json.loads(line_of(process)) for process in processes]
    assert sum(count.get("OK", 0) for count in counts) == len(writers.KEYS)
    assert sum(count.get("EXISTED", 0) for count in counts) == 2 * len(writers.KEYS)
    store = FileStore(tmp_path)
    assert check_objects(store) == len(writers.KEYS)


def test_B50_killed_writers_leave_whole_objects_and_no_litter(start: Start, tmp_path: Path) -> None:
    process = start("kill")
    store = FileStore(tmp_path)
    seen = swept = 0
    for turn in range(200):
        tell(process, f"round {turn}")
        assert line_of(process) == "killed"
        seen += check_objects(store)
        swept += store.sweep()
        left = sorted(path.name for path in (tmp_path / ".tmp").iterdir())
        assert len(left) <= 2  # a folder and a lock, of the writer that lives
        assert [name.partition(".")[0] for name in left] == left[:1] * len(left)
    assert process.stdin
    process.stdin.close()
    counts = json.loads(line_of(process))
    assert set(counts) <= {"OK", "EXISTED"}  # the live writer met no failure
    assert counts["OK"] > 200
    assert seen > 200
    assert swept > 2  # else nobody was killed in the middle of a put
    assert list((tmp_path / ".tmp").iterdir()) == []
