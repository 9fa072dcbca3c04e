"""What a caller may do while its call is under way: reuse tables, interrupt, hurry, ask at once."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from tests.client.world import POISON, World
from tests.io_path.lab import (
    CHUNKS,
    GRID,
    PAGES,
    RANK,
    STAGING,
    Lab,
    arena_of,
    damages,
    make_world,
    patient,
    reuse,
    settled,
    snapshot,
    start,
    unchanged,
    until,
    within,
)
from unikv import Client, Component, KVSpec, PagedCache
from unikv.crew import ThreadWorker
from unikv.io_host import ProcessWorker
from unikv.testing_faults import Rule
from unikv.wire import Link

TABLES: dict[str, Callable[[torch.Tensor], Any]] = {
    "int64": lambda slots: slots.clone(),
    "int32": lambda slots: slots.to(torch.int32),
    "view": lambda slots: torch.stack([slots, slots])[0],
    "numpy": lambda slots: slots.numpy().copy(),
    "lists": lambda slots: slots.tolist(),
}


def spoil(table: Any) -> None:
    """Do as an engine that builds the next step's block table in the same buffer."""
    if isinstance(table, list):
        for row in table:
            row[:] = row[::-1]
        table.reverse()
    elif isinstance(table, np.ndarray):
        table[:] = table[::-1].copy()
    else:
        table.copy_(table.flip(0))


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("call", ["save", "load", "stream"])
def test_tables_are_the_callers_again_once_the_call_has_returned(
    threads_lab: Lab, call: str, kind: str
) -> None:
    lab = threads_lab
    if call != "save":
        lab.fill()
    side = lab.side(lab.store(), filled=call == "save")
    table, pages = TABLES[kind](side.slots), list(lab.world.pages)
    after = threading.Event()
    if call == "save":
        ticket: Any = side.client.save_async(pages, table, after=after)
    else:
        ticket = side.client.load_async(pages, table, after=after, stream=call == "stream")
    spoil(table)
    pages.reverse()
    after.set()
    report = ticket.result(10)
    if call == "save":
        assert report.ok
        assert damages(lab.world, lab.bare()) == []
        side = lab.side(lab.bare())
        assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("call", ["save", "load"])
def test_block_tables_and_tables_by_name_are_the_callers_again_too(
    threads_lab: Lab, call: str
) -> None:
    lab = threads_lab
    blocks = torch.arange(6 * 2).view(6, 2).flip(0).contiguous()  # 2 blocks of 2 tokens a page
    pool = [torch.full((20, 2, 4, 8), POISON, dtype=torch.int32) for _ in range(6)]
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=4, dtype="int32", page_tokens=4)
    world = World(spec, pages_count=6, options=GRID)
    part = {"target": Component(world.namespace, PagedCache.blocks(pool, order="NHD"))}
    with Client(lab.store(), part, RANK, staging_bytes=STAGING) as client:
        for layer in pool:
            layer[:12] = torch.arange(12 * 64, dtype=torch.int32).view(12, 2, 4, 8)
        want = [layer.clone() for layer in pool]
        if call == "load":
            assert client.save(world.pages, {"target": blocks}).ok
            for layer in pool:
                layer.fill_(POISON)
        after, table = threading.Event(), {"target": blocks.clone()}
        if call == "save":
            ticket: Any = client.save_async(world.pages, table, after=after)
        else:
            ticket = client.load_async(world.pages, table, after=after)
        spoil(table["target"])
        table.clear()
        after.set()
        ticket.result(10)
        if call == "save":
            for layer in pool:
                layer.fill_(POISON)
            assert client.load(world.pages, {"target": blocks}).pages == 6
    assert all(torch.equal(a[:12], b[:12]) for a, b in zip(pool, want, strict=True))


class Interrupted(Exception):  # noqa: N818 - stands for KeyboardInterrupt
    """What a signal handler raises."""


def amid_pytest(frame: FrameType | None) -> bool:
    """Tell whether a hook of pytest (or Hypothesis) runs above this file's own code.

    Such a hook sees what a collector's callback or a thread could not raise; if it is interrupted
    itself, no filter of warnings helps.
    """
    while frame is not None and frame.f_code.co_filename != __file__:
        if any(name in frame.f_code.co_filename for name in ("_pytest", "hypothesis")):
            return True
        frame = frame.f_back
    return False


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Raise `Interrupted` in this thread after some time, but not amid pytest's own hooks."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        if amid_pytest(frame):
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
        else:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("call", "verb"), [("load", "get"), ("save", "stat"), ("save", "put"), ("match", "stat")]
)
def test_a_sync_call_that_is_interrupted_gives_back_all_it_held(
    lab: Lab, call: str, verb: Any
) -> None:
    if call != "save":
        lab.fill()
    rule = Rule("hang", verbs=(verb,), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), filled=call == "save", deadline_s=20)
    start(lab, side)
    lab.shut()
    before = snapshot(side)
    client, pages = side.client, lab.world.pages
    work: Callable[[], object] = {
        "load": lambda: client.load(pages, side.slots),
        "save": lambda: client.save(pages, side.slots),
        "match": lambda: client.match(pages),
    }[call]
    with within(2), pytest.raises(Interrupted), interrupted(0.1):
        work()
    assert unchanged(side, before)
    lab.open()
    until(lambda: settled(side))
    assert side.client._transfers.turns._under_way == []
    assert side.client._transfers._in_flight._owners == {}
    if call == "save":
        assert side.client.save(lab.world.pages, side.slots).ok
        assert damages(lab.world, lab.bare()) == []
    reuse(side, POISON)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


@pytest.mark.parametrize("moment", ["before", "amid", "behind"])
def test_an_order_whose_giver_was_interrupted_keeps_its_slot_until_it_has_ended(
    lab: Lab, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be under way: what it writes late must be nobody else's."""
    lab.fill()
    rule = Rule("late", verbs=("get",), keys=PAGES, while_file=lab.gate(), how="garbage")
    side = lab.side(lab.store(rule), deadline_s=20)
    start(lab, side)
    lab.shut()
    kind = ThreadWorker if lab.io == "threads" else ProcessWorker
    begin, step = kind.begin, socket.socket.send

    def interrupted_begin(worker: Any, order: Any, until: float) -> None:
        if moment == "amid" and kind is ProcessWorker:
            monkeypatch.setattr(socket.socket, "send", lambda end, data, *_: step(end, data[:9]))
            monkeypatch.setattr(Link, "_ready", interrupt_second(Link._ready))
        if moment != "before":
            begin(worker, order, until)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(kind, "begin", interrupted_begin)
        with pytest.raises(Interrupted):
            side.client.load(lab.world.pages, side.slots)
    monkeypatch.undo()
    before = reuse(side)
    arena = arena_of(side)
    if moment == "behind":
        time.sleep(0.2)  # it is under way now
        side.client._transfers.guard.crew.reap()
        assert arena.quarantined
    lab.open()
    until(lambda: settled(side))
    assert not arena.quarantined
    assert unchanged(side, before)
    reuse(side, POISON)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert lab.world.holds(side, 6)


def interrupt_second(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stand-in that is interrupted when it is called again."""
    calls = iter([False])

    def stand_in(*args: Any) -> Any:
        if next(calls, True):
            raise Interrupted
        return call(*args)

    return stand_in


# A collector's callback (Hypothesis has one) or the start of a thread may be what is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("delay_s", [0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008])
@pytest.mark.parametrize("io", ["threads", "process"])
def test_an_interrupt_at_any_moment_of_healthy_calls_leaves_a_client_that_works(
    tmp_path: Path, io: str, delay_s: float
) -> None:
    """It may cost a thread, or the I/O process: no code is safe between any two of its steps."""
    lab = Lab(tmp_path, io)
    lab.fill()
    side = lab.side(lab.store(), filled=True, deadline_s=5, io_threads=16)
    start(lab, side)
    pages, slots = lab.world.pages, side.slots
    for n in range(12):
        with suppress(Interrupted), interrupted(delay_s + n * 0.0002 + 1e-6):
            side.client.load(pages, slots)
            side.client.save(pages, slots)
            time.sleep(0.02)
    reuse(side, POISON)
    patient(side)
    with within(2):
        assert side.client.load(pages, slots).pages == 6
        assert side.client.save(pages, slots).existed == 6 * CHUNKS
    assert lab.world.holds(side, 6)
    lab.close()


@pytest.mark.parametrize("deadline_s", [1e-9, 1e-6, 0.001, 0.01])
def test_a_deadline_that_nothing_can_meet_is_a_miss_and_breaks_nothing(
    lab: Lab, deadline_s: float
) -> None:
    lab.fill()
    side = lab.side(lab.store(), deadline_s=deadline_s)
    pages, slots = lab.world.pages, side.slots
    for _ in range(5):
        with within(0.5):
            assert side.client.load(pages, slots).pages in (0, 6)
            side.client.match(pages)
            side.client.prefetch(pages).result(5)
            side.client.save(pages, slots, start=0)
            ticket = side.client.load_async(pages, slots, stream=True)
            assert ticket.result(5).pages in (0, 6)
    side.client._deadline_s = 10.0
    reuse(side, POISON)
    until(lambda: side.client.load(pages, slots).pages == 6)
    assert lab.world.holds(side, 6)
    assert damages(lab.world, lab.bare()) == []


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("fault", ["error", "miss", "hang"])
def test_unread_staging_is_never_shown_though_nothing_is_verified(
    threads_lab: Lab, fault: Any, *, verify: bool
) -> None:
    """B42: the arena is full of another page's bytes, and one object does not come."""
    lab = threads_lab
    lab.fill()
    rule = Rule(fault, verbs=("get",), keys=f"{lab.world.pages[3]}*_L2-4_H0", while_file=lab.gate())
    side = lab.side(lab.store(rule), verify=verify, deadline_s=0.5)
    start(lab, side)
    lab.shut()
    side.client._transfers.guard.arena.tensor.fill_(0xAB)
    report = side.client.load(lab.world.pages, side.slots)
    assert report.pages == (0 if fault == "hang" else 3)
    assert lab.world.holds(side, report.pages)
    streamed = side.client.load_async(lab.world.pages, side.slots, stream=True).result(5)
    assert streamed.pages == 0
    lab.open()
    until(lambda: settled(side))


def test_one_client_serves_many_threads(lab: Lab) -> None:
    world = make_world(24)
    lab.fill(world)
    side = lab.side(lab.store(), world=world, staging_bytes=400_000)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rows = slice(seed * 3, seed * 3 + 3)
        for n in range(6):
            report = (
                side.client.load(world.pages[rows], side.slots[rows])
                if n % 2
                else side.client.load_async(world.pages[rows], side.slots[rows]).result(20)
            )
            if report.pages != 3:
                wrong.append(report)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert world.holds(side, 24)
    assert settled(side)
