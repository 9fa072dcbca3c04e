"""Who forgets a client closes it, wherever the collector or a signal strikes: nothing hangs."""

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
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
