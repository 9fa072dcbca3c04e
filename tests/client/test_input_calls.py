"""Arguments of calls and tickets of wrong types: one clear error, before anything moves."""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from unikv import Client, Component, KVSpec, Namespace, PagedCache, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.errors import KeyFormatError, PoolError, SpecError
from unikv.state import StatePart
from unikv.tickets import LoadTicket

SPEC = KVSpec.mha(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_tokens=4)
NAMESPACE = Namespace(model="m", weights="unversioned", spec=SPEC, rope="none")
PAGES = page_hashes(range(16), 4)
SLOTS = torch.arange(16).view(4, 4)
CALLS = ["save", "save_async", "load", "load_async", "prefetch"]


@pytest.fixture
def one() -> Iterator[Client]:
    kv = ([torch.zeros(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv")
    with Client(MemoryStore(), NAMESPACE, Topology().rank(), PagedCache.slots(*kv)) as made:
        yield made
        assert list(made._store.list()) == []


PAGES_WRONG: dict[str, Callable[[], object]] = {
    "None": lambda: None,
    "0": lambda: 0,
    "generator": lambda: iter(PAGES),
    "set": lambda: set(PAGES),
    "numpy": lambda: np.array(PAGES),
    "one text": lambda: PAGES[0],
    "bytes": lambda: b"x" * 64,
    "a mapping": lambda: {1: {}},
    "nested": lambda: [[PAGES[0]]],
}


@pytest.mark.parametrize("pages", PAGES_WRONG)
@pytest.mark.parametrize("call", ["match", *CALLS])
def test_pages_that_are_no_list_of_hashes(one: Client, call: str, pages: str) -> None:
    slots = () if call in ("match", "prefetch") else (SLOTS,)
    with pytest.raises(KeyFormatError, match="want"):
        getattr(one, call)(PAGES_WRONG[pages](), *slots)


TABLES_WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "sparse": (SLOTS.to_sparse, "slots as a torch.sparse_coo tensor"),
    "csr": (SLOTS.to_sparse_csr, "slots as a torch.sparse_csr tensor"),
    "nested": (lambda: torch.nested.nested_tensor(list(SLOTS)), "slots as a nested tensor"),
    "a bool": (lambda: True, "slots True"),
    "numpy number": (lambda: np.int64(3), "slot 3 for all pages"),
    "mixed names": (lambda: {1: SLOTS, "target": SLOTS}, "slots for components"),
    "named None": (lambda: {"target": None}, "no table of whole numbers"),
    "huge": (lambda: [[2**70] * 4] * 4, "no table of whole numbers"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of what it has in beta
@pytest.mark.parametrize("name", TABLES_WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_slots_that_are_no_dense_table(one: Client, call: str, name: str) -> None:
    slots, says = TABLES_WRONG[name]
    with pytest.raises(PoolError, match="want") as caught:
        getattr(one, call)(PAGES, slots())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "endpoints", [5, "x", "4", b"\1", [1, "a"], [1.0], [True], [None], [[1]], {}, {1: 2}, [-1], [5]]
)
@pytest.mark.parametrize("call", ["save", "save_async"])
def test_endpoints_that_are_none(one: Client, call: str, endpoints: Any) -> None:
    with pytest.raises(SpecError, match=r"endpoint.*want"):
        getattr(one, call)(PAGES, SLOTS, endpoints=endpoints)


@pytest.mark.parametrize("start", [None, "x", 1.0, True, [], -1, 2**70])
def test_a_start_that_is_no_position(one: Client, start: Any) -> None:
    with pytest.raises(PoolError, match=r"start=.*want"):
        one.save(PAGES, SLOTS, start=start)


@pytest.mark.parametrize("stream", [None, 0, 2, "x", []])
def test_a_stream_that_is_no_switch(one: Client, stream: Any) -> None:
    with pytest.raises(SpecError, match=r"stream=.*want True or False"):
        one.load_async(PAGES, SLOTS, stream=stream)


class Bare:
    """Waits, and would not end at a deadline."""

    def wait(self) -> bool:
        return True


class Number:
    query = 5


class Awaited:
    async def query(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (lambda: threading.Event, "is a class"),
        (lambda: torch.Event, "is a class"),
        (threading.Condition, "is no event"),
        (multiprocessing.Condition, "is no event"),
        (lambda: threading.Barrier(2), "is no event"),
        (asyncio.Event, "for an event loop"),
        (Awaited, "for an event loop"),
        (Bare, "takes no wait(seconds)"),
        (Number, ""),
        (threading.Lock, ""),
        (lambda: False, ""),
    ],
)
@pytest.mark.parametrize("call", ["save_async", "load_async"])
def test_what_cannot_be_waited_for(
    one: Client, call: str, after: Callable[[], Any], says: str
) -> None:
    for _ in range(2):  # what is known of a kind is kept
        with pytest.raises(PoolError, match=r"after=.*want an event") as caught:
            getattr(one, call)(PAGES, SLOTS, after=after())
        assert says in str(caught.value)


class Static:
    @staticmethod
    def query() -> bool:
        return True


class Own:
    def __init__(self) -> None:
        self.wait = lambda seconds: seconds == 0


@pytest.mark.parametrize("after", [Static, Own, torch.Event])
def test_events_of_any_make_are_waited_for(after: Callable[[], Any]) -> None:
    kv = ([torch.zeros(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv")
    with Client(MemoryStore(), NAMESPACE, Topology().rank(), PagedCache.slots(*kv)) as one:
        assert one.save_async(PAGES, SLOTS, after=after()).result(10).ok


def loaded() -> LoadTicket:
    kv = ([torch.zeros(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv")
    with Client(MemoryStore(), NAMESPACE, Topology().rank(), PagedCache.slots(*kv)) as one:
        ticket = one.load_async(PAGES, SLOTS)
        ticket.result(10)
    return ticket


@pytest.mark.parametrize("layer", ["x", None, 0.5, 1.0, True, [], -1, 2])
def test_a_layer_that_is_none(layer: Any) -> None:
    with pytest.raises(PoolError, match=r"layer .*: the pool has 2"):
        loaded().wait_layer(layer)


@pytest.mark.parametrize("timeout", ["x", [], True, float("nan"), np.array([1.0])])
def test_a_timeout_that_is_no_time(timeout: Any) -> None:
    ticket = loaded()
    for wait in (ticket.result, lambda timeout: ticket.wait_layer(0, timeout=timeout)):
        with pytest.raises(SpecError, match=r"timeout=.*want seconds"):
            wait(timeout)


@pytest.mark.parametrize(
    "timeout", [1e30, float("inf"), 2**70, np.float32(5), np.int64(5), 10**400]
)
def test_any_time_may_be_waited(timeout: Any) -> None:
    ticket: LoadTicket = LoadTicket(2, stream=True)
    threading.Timer(0.05, ticket.cancel).start()
    with pytest.raises(Exception, match="the call was cancelled"):
        ticket.result(timeout)
    with pytest.raises(Exception, match="the call was cancelled"):
        ticket.wait_layer(np.int64(1), timeout=timeout)  # type: ignore[arg-type]


def test_positions_of_numpy_are_stored_as_such() -> None:
    kv = ([torch.ones(64, 2, 8).bfloat16() for _ in "01"] for _ in "kv")
    with Client(MemoryStore(), NAMESPACE, Topology().rank(), PagedCache.slots(*kv)) as one:
        start: Any = np.int32(7)
        assert one.save(PAGES, SLOTS, start=start, endpoints=np.array([4])).stored == 4
        assert one.load(PAGES, SLOTS).pages == 4


def test_a_number_of_numpy_is_the_slot_of_a_state() -> None:
    part = StatePart("conv", "int16", (4,))
    spec = KVSpec.state(layers=1, parts=[part], page_tokens=4)
    space = Namespace(spec=spec, weights="unversioned", model="m", rope="none", component="state")
    rows = torch.arange(8, dtype=torch.int16).view(2, 4)
    states = {"state": Component(space, PagedCache.states(spec, {"conv": [rows]}))}
    with Client(MemoryStore(), states, Topology().rank()) as one:
        assert one.save(PAGES[:1], [[1]]).ok
        slots: Any = np.int64(0)
        assert one.load(PAGES[:1], slots).pages == 1
        assert torch.equal(rows[0], rows[1])
        with pytest.raises(PoolError, match="slots True: want a table"):
            one.load(PAGES[:1], True)  # noqa: FBT003
