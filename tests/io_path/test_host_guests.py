"""Guests of one I/O process who have nothing in common, and what they leave in it."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.client.world import Side, World
from tests.io_path.engines import Engine, serving
from tests.io_path.lab import RANK, Lab, patient, start, until, within
from unikv import KVSpec
from unikv.registry import open_store
from unikv.reports import LoadReport

SPECS = (
    KVSpec.mha(layers=3, kv_heads=2, head_dim=8, dtype="int32", page_tokens=8),
    KVSpec.mha(layers=5, kv_heads=1, head_dim=24, dtype="int32", page_tokens=16),
    KVSpec.mha(layers=6, kv_heads=4, head_dim=3, v_head_dim=5, dtype="int32", page_tokens=4),
)


@pytest.fixture
def lab(threads_lab: Lab) -> Lab:
    threads_lab.io = f"host:{threads_lab.root}/io.sock"
    return threads_lab


def house(lab: Lab) -> int:
    [pid] = serving(f"{lab.root}/io.sock")
    return pid


def holdings(pid: int) -> dict[str, int]:
    """Return how many descriptors and threads a process has, and maps of clients' memory."""
    proc = Path(f"/proc/{pid}")
    return {
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": len(list((proc / "task").iterdir())),
        "maps": (proc / "maps").read_text().count("memfd:unikv"),
    }


def loaded(load: Callable[[], LoadReport]) -> bool:
    return load().pages == 6


def test_three_with_unlike_specs_stores_and_arenas_work_at_once(lab: Lab) -> None:
    worlds = [World(spec, pages_count=5, options={}) for spec in SPECS]
    wrong: list[Any] = []
    sides: list[Side] = []
    for n, world in enumerate(worlds):
        store = open_store(f"file://{lab.root}/kv{n}")
        staging = (n + 1) << 20
        sides.append(world.side(store, RANK, filled=True, io=lab.io, staging_bytes=staging))
    lab.sides += sides

    def work(world: World, side: Side) -> None:
        for _ in range(5):
            saved = side.client.save(world.pages, side.slots)
            loaded = side.client.load(world.pages, side.slots)
            if not saved.ok or loaded.pages != 5 or not world.holds(side, 5):
                wrong.append((saved, loaded))

    threads = [threading.Thread(target=work, args=both) for both in zip(worlds, sides, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert house(lab)


def test_guests_who_left_or_were_killed_leave_nothing_in_it(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store())
    start(lab, side)
    pid = house(lab)
    before = holdings(pid)
    for _ in range(5):
        guest = lab.side(lab.store())
        assert guest.client.load(lab.world.pages, guest.slots).pages == 6
        guest.client.close()
    for _ in range(2):
        with Engine(lab, lab.io) as engine:
            engine.do("save")
    until(lambda: all(holdings(pid)[name] <= count for name, count in before.items()), 3)
    assert house(lab) == pid


def test_a_stopped_process_costs_old_and_new_guests_their_deadline(lab: Lab) -> None:
    lab.fill()
    old = lab.side(lab.store(), deadline_s=0.4)
    start(lab, old)
    pid = house(lab)
    os.kill(pid, signal.SIGSTOP)
    try:
        new = lab.side(lab.store(), deadline_s=0.4)
        for side in (old, new):
            with within(0.4):
                assert side.client.load(lab.world.pages, side.slots).pages == 0
        third = lab.side(lab.store())
        with within(0.5):
            third.client.close()
    finally:
        os.kill(pid, signal.SIGCONT)
    for side in (old, new):
        patient(side)
        load = partial(side.client.load, lab.world.pages, side.slots)
        until(partial(loaded, load))
    assert house(lab) == pid
