"""A store that hangs and never comes back: what it may hold on to, and what it costs."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.io_path.lab import (
    PAGES,
    Lab,
    alive,
    arena_of,
    io_pid,
    make_world,
    meter,
    patient,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from unikv.testing_faults import Rule

ROOT = Path(__file__).parents[2]
THREADS = 3


def io_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "unikv-io"}


def test_it_holds_no_more_threads_than_it_may_and_then_calls_miss_at_once(
    threads_lab: Lab,
) -> None:
    """Also where the breaker stays shut, since other calls are answered meanwhile."""
    lab = threads_lab
    world = make_world(12)
    lab.fill(world)
    others = io_threads()  # that tests before left to their stores
    rule = Rule("hang", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, deadline_s=0.2, io_threads=THREADS)
    start(lab, side)
    lab.shut()
    tickets = []
    for n in range(12):
        ticket = side.client.load_async(world.pages[n : n + 1], side.slots[n : n + 1])
        tickets.append(ticket)
    for ticket in tickets:
        assert ticket.result(5).pages == 0
    assert len(io_threads() - others) == THREADS
    held = arena_of(side).quarantined
    assert 0 < held < arena_of(side).size
    before = reuse(side)
    for _ in range(20):
        with within(0.05):
            report = side.client.load(world.pages, side.slots)
        assert report.pages == 0
        assert report.stopped
    assert len(io_threads() - others) == THREADS
    assert arena_of(side).quarantined == held
    assert meter(side, "unikv_io_stuck_threads") == THREADS
    with within(0.5):
        side.client.close()
    lab.open()
    assert unchanged(side, before)


def test_killing_the_io_process_is_a_way_out(process_lab: Lab) -> None:
    lab = process_lab
    lab.fill()
    rule = Rule("hang", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=0.2, io_threads=2)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    tickets = [side.client.load_async(pages[n : n + 1], slots[n : n + 1]) for n in range(4)]
    assert [ticket.result(5).pages for ticket in tickets] == [0] * 4
    pid = io_pid(side)
    lab.open()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    patient(side)
    until(lambda: side.client.load(pages, slots).pages == 6)
    assert lab.world.holds(side, 6)
    until(lambda: settled(side))


SCRIPT = """
import sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.io_path.lab import *
from unikv.testing_faults import Rule

lab = Lab(Path(sys.argv[1]), "threads")
lab.fill()

class Hangs:
    def __init__(self, store):
        for name in ("put", "stat", "delete", "list", "close"):
            setattr(self, name, getattr(store, name))
        self.store = store
    def get(self, spans):
        if hung:
            print("hangs", flush=True)
            [lock.acquire() for lock in [threading.Lock()] * 2]  # no way to be woken
        return self.store.get(spans)

hung = False
side = lab.side(Hangs(lab.bare()), deadline_s=0.2, io_threads=2)
start(lab, side)
hung = True
tickets = [side.client.load_async(lab.world.pages, side.slots) for _ in range(3)]
print([ticket.result(5).pages for ticket in tickets], flush=True)
after = threading.Event()
side.client._deadline_s = 60
held = side.client.load_async(lab.world.pages, side.slots, after=after)
begun = time.monotonic()
if sys.argv[2] == "close":
    side.client.close()
if sys.argv[2] == "raise":
    raise SystemExit(3)
print("closed" if time.monotonic() - begun < 1 else "late", flush=True)
"""


@pytest.mark.parametrize(("how", "code"), [("close", 0), ("leave", 0), ("raise", 3)])
def test_the_interpreter_exits_though_its_threads_hang(tmp_path: Path, how: str, code: int) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), how]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == code, done.stderr[-2000:]
    assert "hangs" in done.stdout
    assert "[0, 0, 0]" in done.stdout
    assert "late" not in done.stdout
