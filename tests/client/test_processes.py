"""Client: processes that are killed in the middle of a save, or save the same pages at once."""

import json
import subprocess
import sys
from pathlib import Path

from tests.client.world import World
from unikv import Topology, open_store

ROOT = Path(__file__).parents[2]
SAVE_ONCE = """
import sys, torch
from tests.client.killed import OPTIONS, SPEC
from tests.client.world import World
from unikv import Topology, open_store
torch.set_num_threads(1)
world = World(SPEC, pages_count=6, options=OPTIONS)
side = world.side(open_store(sys.argv[1]), Topology().rank(), filled=True)
print("ready", flush=True)
sys.stdin.readline()
report = side.client.save(world.pages, side.slots)
assert report.ok, report
print(report.stored, report.existed)
"""


def test_B50_writers_killed_in_the_middle_of_save_leave_nothing_that_does_not_verify(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.client.killed", str(tmp_path), "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bad"] == []
    assert result["seen"] > 50  # the kills came while there was something to lose
    assert result["swept"] > 2
    assert result["live"] == 2 * 2  # chunks of a page of the writer that lived


def test_two_processes_that_save_the_same_pages_at_once_both_succeed(tmp_path: Path) -> None:
    from tests.client.killed import OPTIONS, SPEC

    command = [sys.executable, "-c", SAVE_ONCE, tmp_path.as_uri()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    counts = [process.communicate()[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    world = World(SPEC, pages_count=6, options=OPTIONS)
    objects = 6 * 2 * 2
    assert all(int(stored) + int(existed) == objects for stored, existed in counts)
    assert sum(int(stored) for stored, _ in counts) == objects
    [(side, report)] = world.load(open_store(tmp_path.as_uri()), Topology())
    assert report.pages == 6
    assert world.holds(side, 6)
