"""Lab: a world large enough to be hurt in the middle of a call, on one real server. No faults."""

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from tests.client.world import POISON, Side, World
from tests.io_path.lab import damages, left, meter, settled, until
from tests.network.place import Place
from tests.network.places import forget
from unikv import KVSpec, Topology
from unikv.events import Event
from unikv.registry import open_store
from unikv.reports import LoadReport, SaveReport
from unikv.store import Store

Way: TypeAlias = Literal["save", "load"]

SPEC = KVSpec.mha(layers=4, kv_heads=4, head_dim=32, dtype="int32", page_tokens=16)
GRID = {"layer_cuts": (0, 2, 4), "heads_per_chunk": 2}
CHUNKS = 4  # of a page, 16 KiB each
PAGES = 24
STAGING = 512 << 10  # three pages an order: a call is many orders
RANK = Topology().rank()
DEADLINE_S = 1.5
PATIENCE_S = 20.0


class Struck(NamedTuple):
    """What became of a call whose server was hurt meanwhile."""

    report: Any  # SaveReport or LoadReport
    seconds: float
    done: bool  # before the blow

    @property
    def timely(self) -> bool:
        """Whether the deadline was kept, within a fifth."""
        return self.seconds <= DEADLINE_S * 1.2


@dataclass
class Lab:
    """One world on one server: clients with their pools, and the events that they told."""

    place: Place
    prefix: str
    world: World = field(default_factory=lambda: World(SPEC, PAGES, dict(GRID)))
    events: list[Event] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    hurt: bool = False  # the server, and nobody has seen it well again

    def __post_init__(self) -> None:
        self.store = self.open()
        forget(self.store)

    def open(self) -> Store:
        """Open another store of the same objects; it is closed with the lab."""
        self.stores.append(open_store(self.place.url(self.prefix)))
        return self.stores[-1]

    def side(self, *, store: Store | None = None, filled: bool = False, **options: Any) -> Side:
        """Return a rank with its pool and client, whose events are kept."""
        options = {"deadline_s": PATIENCE_S, "staging_bytes": STAGING, **options}
        side = self.world.side(
            store or self.store, RANK, filled=filled, on_event=self.events.append, **options
        )
        self.sides.append(side)
        return side

    @contextmanager
    def leaving_nothing(self, io: str) -> Iterator[Side]:
        """Give a client with a short deadline; see that nothing is left once all is closed."""
        self.save_all()  # what a library keeps from its first use on is there then
        before = self._left()
        store = self.open()
        side = self.side(store=store, io=io)
        side.client.match(self.world.pages)  # its I/O process is started
        side.client._deadline_s = DEADLINE_S
        yield side
        until(lambda: settled(side))
        side.client.close()
        store.close()
        self.sides.remove(side)
        self.stores.remove(store)
        end = time.monotonic() + 10
        while not (gc.collect() >= 0 and self._left() <= before):
            assert time.monotonic() < end, self._left() - before
            time.sleep(0.05)

    def _left(self) -> Counter[str]:
        """Return what a client may leave behind: threads, processes, memory, descriptors."""
        now = left()
        descriptors = now["descriptors"]
        assert isinstance(descriptors, dict)
        kept = self.place.keeps_open
        descriptors = {k: n for k, n in descriptors.items() if not k.startswith(kept)}
        assert isinstance(now["children"], set)
        children = {f"process {pid}": 1 for pid in now["children"] - self.place.pids}
        names = {f"shm {name}": 1 for name in now["shm"]}  # type: ignore[attr-defined]
        counts = {name: now[name] for name in ("threads", "mapped")}
        return Counter({**descriptors, **children, **names, **counts})

    def save_all(self) -> None:
        """Store all pages by another client."""
        with self.side(filled=True).client as client:
            report = client.save(self.world.pages, self.sides[-1].slots)
        self.sides.pop()
        assert report.ok, report.failed[:1]

    def save(self, side: Side) -> SaveReport:
        """Save all pages."""
        return side.client.save(self.world.pages, side.slots)

    def load(self, side: Side) -> LoadReport:
        """Load all pages."""
        return side.client.load(self.world.pages, side.slots)

    def strike(self, side: Side, way: Way, blow: Callable[[], object], orders: int) -> Struck:
        """Start a call; strike once so many of its orders to the store were answered."""
        verb = {"save": "put", "load": "get"}[way]

        def answered() -> float:
            return meter(side, "unikv_io_orders_total", verb=verb, outcome="ok")

        before, begun = answered(), time.monotonic()
        ticket = getattr(side.client, f"{way}_async")(self.world.pages, side.slots)
        until(lambda: ticket.done() or answered() - before >= orders)
        time.sleep(random.uniform(0, 0.003))
        done = ticket.done()
        self.hurt = True
        blow()
        report = ticket.result()
        return Struck(report, time.monotonic() - begun, done)

    def check_load(self, side: Side, report: LoadReport) -> None:
        """See that the pool holds what the report claims, and else what it held before."""
        assert self.world.holds(side, report.pages)
        assert (report.stopped is None) == (report.pages == PAGES)

    def check_save(self, report: SaveReport) -> list[str]:
        """See that a report accounts for every object once; return those it says are stored."""
        assert report.stored + report.existed + len(report.failed) == PAGES * CHUNKS
        lost = {failure.key for failure in report.failed}
        assert len(lost) == len(report.failed)
        return [key for key in self.keys() if key not in lost]

    def keys(self) -> list[str]:
        """Return the keys of all objects of the world."""
        plan = self.world.side(self.store, RANK).client._lanes[0].write
        return plan.keys(self.world.pages)

    def check_stored(self, keys: list[str]) -> None:
        """See that keys are stored, and that nothing wrong is, with eyes of its own."""
        with closing(open_store(self.place.url(self.prefix))) as store:
            until(lambda: None not in store.stat(keys))
            assert damages(self.world, store) == []

    def poison(self, side: Side) -> None:
        """Let a pool hold nothing."""
        for part in side.pools:
            for layer in part:
                layer.fill_(POISON)

    def put(self, side: Side) -> None:
        """Let a pool hold the whole KV."""
        for whole, part in zip(self.world.kv, side.pools, strict=True):
            for layer, pool in zip(whole, part, strict=True):
                pool[side.slots.flatten()] = layer
        assert self.world.holds(side, PAGES)

    def works(self, side: Side) -> None:
        """See that the same client saves and loads all, as soon as the server lets it."""
        self.put(side)
        deadline_s, side.client._deadline_s = side.client._deadline_s, PATIENCE_S
        until(lambda: self.save(side).ok, PATIENCE_S)
        self.poison(side)
        report = self.load(side)
        assert report.pages == PAGES, report
        assert self.world.holds(side, PAGES)
        self.poison(side)
        side.client._deadline_s = deadline_s
        self.hurt = False

    def kinds(self) -> Counter[str]:
        """Return how often each kind of event was told."""
        return Counter(event.kind for event in self.events)

    def close(self) -> None:
        """Close all clients and stores."""
        for side in self.sides:
            side.client.close()
        for store in self.stores:
            store.close()
