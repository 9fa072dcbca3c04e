"""Who forgets a client closes it, wherever the collector or a signal strikes: nothing hangs."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.io_path.lab import (
    Lab,
    alive,
    io_pid,
    nothing_left,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from tests.io_path.test_callers import interrupted
from unikv import Catalog, Client
from unikv.errors import StoreError
from unikv.events import Event
from unikv.gate import Gate
from unikv.latch import Latch


class Engine:
    """Holds a client that holds it, as one does whose method hears the client's events."""

    def __init__(self, lab: Lab) -> None:
        self.store = lab.store()
        self.side = lab.side(self.store, on_event=self.hear)
        lab.sides.pop()
        self.client = self.side.client
        self.client.engine = self  # type: ignore[attr-defined]

    def hear(self, event: Event) -> None:
        """Hear of an event."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let the collector strike where a test says so, and nowhere else."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_an_engine_that_hears_its_client_is_collected_with_it(lab: Lab) -> None:
    lab.fill()
    with nothing_left():
        engine = Engine(lab)
        start(lab, engine.side)
        pid = io_pid(engine.side) if lab.io == "process" else 0
        client = weakref.ref(engine.client)
        del engine
        gc.collect()
        assert client() is None
        until(lambda: not pid or not alive(pid))


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("call", ["load", "stream", "save"])
def test_the_collector_may_strike_amid_a_copy(
    lab: Lab, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.fill()
    leave, struck = Gate.__exit__, threading.Event()

    def collect(gate: Gate, *error: object) -> None:
        if threading.current_thread() is not threading.main_thread() and not struck.is_set():
            gc.collect()
            struck.set()
        leave(gate, *error)  # type: ignore[arg-type]

    with nothing_left():
        engine = Engine(lab)
        start(lab, engine.side)
        if call == "save":
            lab.bare().delete([entry.key for entry in lab.bare().list()])
        after = threading.Event()
        begin: Any = engine.client.save_async if call == "save" else engine.client.load_async
        more = {"stream": True} if call == "stream" else {}
        ticket = begin(lab.world.pages, engine.side.slots, after=after, **more)
        monkeypatch.setattr(Gate, "__exit__", collect)
        store = engine.store
        del engine, begin
        after.set()  # the collector closes the client from inside of its own gate
        with suppress(CancelledError):
            ticket.result(10)
        until(struck.is_set)
        monkeypatch.undo()
        store.close()


@contextmanager
def closing_on_a_signal(client: Client | Catalog) -> Iterator[None]:
    """Have SIGUSR1 close a client."""
    before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    try:
        with interrupted(10):  # instead of a hang
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def in_a_moment() -> None:
    """Send the main thread SIGUSR1."""
    main = threading.main_thread().ident or 0
    threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1)).start()


@pytest.mark.parametrize("call", ["load", "save"])
def test_a_signal_handler_may_close_a_client_amid_a_copy(
    lab: Lab, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.fill()
    side = lab.side(lab.store(), filled=call == "save")
    start(lab, side)
    if call == "save":
        lab.bare().delete([entry.key for entry in lab.bare().list()])
    client, pages, slots = side.client, lab.world.pages, side.slots
    leave, calls = Gate.__exit__, [0]

    def strike(gate: Gate, *error: object) -> None:
        if threading.current_thread() is threading.main_thread() and not calls[0]:
            calls[0] += 1
            signal.raise_signal(signal.SIGUSR1)
        leave(gate, *error)  # type: ignore[arg-type]

    monkeypatch.setattr(Gate, "__exit__", strike)
    with closing_on_a_signal(client), suppress(StoreError, CancelledError):
        (client.save if call == "save" else client.load)(pages, slots)
    monkeypatch.undo()
    assert calls == [1]
    before = reuse(side)
    until(lambda: settled(side))
    assert unchanged(side, before)
    with pytest.raises(StoreError, match="closed"):
        client.load(pages, slots)


def test_a_signal_handler_may_close_a_client_that_is_waited_for(lab: Lab) -> None:
    side = lab.side(lab.store())
    start(lab, side)
    ticket = side.client.load_async(lab.world.pages, side.slots, after=threading.Event())
    in_a_moment()
    with closing_on_a_signal(side.client), pytest.raises(CancelledError):
        ticket.result(5)


@pytest.mark.parametrize("what", ["client", "catalog"])
def test_a_signal_handler_may_close_what_matches(threads_lab: Lab, what: str) -> None:
    threads_lab.fill()
    closed: Client | Catalog = threads_lab.side(threads_lab.store()).client
    if what == "catalog":
        closed = Catalog(threads_lab.store(), threads_lab.world.namespace)
    in_a_moment()

    def match_on() -> None:
        while True:
            closed.match(threads_lab.world.pages)

    with closing_on_a_signal(closed), pytest.raises(StoreError, match="closed"):
        match_on()


def test_a_latch_is_waited_for_and_set_by_whoever_waits() -> None:
    latch = Latch()
    assert not latch.wait(0.01)
    before = signal.signal(signal.SIGALRM, lambda *_: latch.set())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert latch.wait(10)
        assert latch.is_set()
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("does", ["close", "call", "raise"])
def test_who_hears_of_the_death_of_an_io_process_may_use_the_client(
    tmp_path: Path, does: str
) -> None:
    lab = Lab(tmp_path, "process")
    lab.fill()
    heard: list[str] = []

    def hear(event: Event) -> None:
        if len(heard) < 3:
            heard.append(event.kind)
        if event.kind == "io_process_died":
            match does:
                case "close":
                    side.client.close()
                case "call":
                    side.client.match(lab.world.pages)
                case _:
                    raise RuntimeError(does)

    side = lab.side(lab.store(), on_event=hear)
    start(lab, side)
    pid = io_pid(side)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    side.client._deadline_s = 5.0
    with within(3), suppress(StoreError):
        assert side.client.load(lab.world.pages, side.slots).pages in (0, 6)
    until(lambda: heard == ["io_process_started", "io_process_died", "io_process_started"])
    if does != "close":
        until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)
    with within(2):
        side.client.close()
    lab.close()


def test_a_process_that_was_closed_while_it_started_did_not_die(tmp_path: Path) -> None:
    lab = Lab(tmp_path, "process")
    for delay in (0.0, 0.05, 0.2):
        side = lab.side(lab.store())
        ticket = side.client.load_async(lab.world.pages, side.slots)
        time.sleep(delay)
        side.client.close()
        with suppress(CancelledError):
            ticket.result(5)
    lab.close()
    assert lab.kinds()["io_process_died"] == 0


PROGRAM = """
import sys, time, torch
from unikv import *
how, root, delay = sys.argv[1], sys.argv[2], float(sys.argv[3])
spec = KVSpec.mha(layers=16, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=16)
namespace = Namespace(spec=spec, weights="unversioned", model="toy", rope="none")
parts = [[torch.zeros(512, 8, 128).bfloat16() for _ in range(16)] for _ in range(2)]
pages, slots = page_hashes(list(range(512)), 16), torch.arange(512).view(32, 16)
store, pool = open_store(f"file://{root}"), PagedCache.slots(*parts)
client = Client(store, namespace, Topology().rank(), pool)
if how == "fill":
    sys.exit(not client.save(pages, slots).ok)
tickets = [client.load_async(pages, slots, stream=how == "stream") for _ in range(4)]
time.sleep(delay)
if how == "close":
    client.close()
"""


@pytest.mark.parametrize("how", ["leave", "stream", "close"])
def test_a_program_that_ends_amid_loads_ends_well(tmp_path: Path, how: str) -> None:
    """Daemon threads that come back to no interpreter would end it with SIGABRT."""

    def run(how: str, delay: float) -> int:
        command = [sys.executable, "-c", PROGRAM, how, str(tmp_path), str(delay)]
        return subprocess.run(command, check=False, timeout=60, env=env).returncode

    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert run("fill", 0) == 0
    assert [run(how, delay) for delay in (0, 0.01, 0.02, 0.04)] == [0] * 4
