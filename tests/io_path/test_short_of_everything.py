"""No descriptor or no thread for a moment: calls miss, and I/O under way keeps its slot."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.client.world import POISON
from tests.io_path.lab import (
    PAGES,
    Lab,
    arena_of,
    children,
    damages,
    meter,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from unikv.testing_faults import Rule


@contextmanager
def no_descriptor(pid: int) -> Iterator[None]:
    """Let a process open no file more."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    lowest = next(n for n in count() if n not in taken)  # the next one would be this
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("how", ["process", "host"])
@pytest.mark.parametrize("who", ["client", "process"])
def test_no_descriptor_for_a_worker_costs_no_other_order(
    tmp_path: Path, how: str, who: str
) -> None:
    """The process lives, and reads late into a slot that nobody else may have by then."""
    lab = Lab(tmp_path, "process" if how == "process" else f"host:{tmp_path}/io.sock")
    lab.fill()
    before = children()
    rule = Rule("late", verbs=("get",), keys=PAGES, while_file=lab.gate(), how="garbage")
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    [pid] = children() - before if how == "process" else _listening(f"{tmp_path}/io.sock")
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    ticket = side.client.load_async(pages, slots)
    until(lambda: lab.befallen("late"))
    arena = arena_of(side)
    used = arena.used
    hung = side.client.prefetch(pages)  # takes the other worker
    with no_descriptor(os.getpid() if who == "client" else pid), within(2):
        side.client._deadline_s = 1.0
        assert not side.client.match(pages).exact
    assert not ticket.done()
    assert arena.used >= used > 0
    ticket.cancel()
    hung.cancel()
    pool = reuse(side)
    assert not settled(side)
    time.sleep(0.5)  # longer than the threads of a guest have who left
    assert arena.quarantined >= used
    lab.open()
    until(lambda: settled(side))
    assert unchanged(side, pool)
    side.client._deadline_s = 10.0
    reuse(side, POISON)
    until(lambda: side.client.load(pages, slots).pages == 6)
    assert lab.world.holds(side, 6)
    assert damages(lab.world, lab.bare()) == []
    lab.close()


def _listening(path: str) -> list[int]:
    """Return the process that serves a socket."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            line = (one / "cmdline").read_bytes()
        except OSError:
            continue
        if b"unikv.io_process" in line and b"listen" in line:
            links = [str(fd.readlink()) for fd in (one / "fd").iterdir() if fd.is_symlink()]
            inode = next(
                row.split()[6]
                for row in Path("/proc/net/unix").read_text().splitlines()
                if row.endswith(path)
            )
            if f"socket:[{inode}]" in links:
                found.append(int(one.name))
    return found


@contextmanager
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no thread be started, as at a limit of processes."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


@pytest.mark.parametrize("call", ["load", "save", "match", "prefetch"])
def test_where_no_thread_can_be_started_calls_miss(
    lab: Lab, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.fill()
    side = lab.side(lab.store(), filled=call == "save", io_threads=4)
    pages, slots = lab.world.pages, side.slots
    with no_thread(monkeypatch):
        for _ in range(6):
            match call:
                case "load":
                    assert side.client.load(pages, slots).pages == 0
                    assert side.client.load_async(pages, slots).result(5).pages == 0
                case "save":
                    assert not side.client.save(pages, slots).ok
                    assert not side.client.save_async(pages, slots).result(5).ok
                case "match":
                    assert not side.client.match(pages).exact
                case _:
                    assert side.client.prefetch(pages).result(5).pages == 0
    side.client._deadline_s = 10.0
    until(lambda: side.client.load(pages, slots).pages == 6)
    assert side.client.load_async(pages, slots).result(10).pages == 6
    assert side.client.save_async(pages, slots).result(10).ok
    assert lab.world.holds(side, 6)
    until(lambda: settled(side))
    assert meter(side, "unikv_open_tickets", call="load") == 0


def test_a_ticket_that_waits_for_a_thread_is_carried_out_by_one_that_is_there(
    threads_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = threads_lab
    lab.fill()
    side = lab.side(lab.store())
    start(lab, side)
    after = threading.Event()
    first = side.client.load_async(lab.world.pages, side.slots, after=after)
    until(lambda: side.client._movers._shop.started)
    with no_thread(monkeypatch):
        second = side.client.load_async(lab.world.pages, side.slots)
        after.set()
        assert first.result(10).pages == 6
        assert second.result(10).pages == 6
