"""Client: places that cannot hold what they are named for, odd stores, damage healed elsewhere."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.client.test_damage import keys_of, read, write
from tests.client.world import World
from unikv import Catalog, Client, Component, KVSpec, Namespace, PagedCache, Topology
from unikv.backends.memory import MemoryStore
from unikv.coverage import Window
from unikv.errors import KeyFormatError, PoolError, SpecError, StoreError, TopologyError
from unikv.siblings import MOST_CHUNKS
from unikv.store import Item, Outcome, Outcomes, Span


def test_a_save_from_one_slot_for_two_pages_is_refused(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    slots = side.slots.clone()
    slots[1] = slots[0]
    with pytest.raises(PoolError, match="pages 0 and 1 both name"):
        side.client.save(world.pages, slots)
    assert list(store.list()) == []


def two_on_one(world: World, store: MemoryStore, k: list[torch.Tensor]) -> Client:
    other = Namespace(
        spec=world.spec, weights="unversioned", model="world", rope="none", component="draft"
    )
    v = [torch.zeros(33, 4, 5, dtype=torch.int32) for _ in range(6)]
    pools = [PagedCache.slots(k, v), PagedCache.slots(k, [t.clone() for t in v])]
    parts = {"target": Component(world.namespace, pools[0]), "draft": Component(other, pools[1])}
    return Client(store, parts, Topology().rank())


def test_components_in_one_memory_may_share_it_but_no_block(
    world: World, store: MemoryStore
) -> None:
    client = two_on_one(world, store, [torch.ones(33, 4, 3, dtype=torch.int32) for _ in range(6)])
    mine, theirs = torch.arange(8).view(2, 4), torch.arange(8, 16).view(2, 4)
    assert client.save(world.pages[:2], {"target": mine, "draft": theirs}).ok
    theirs[1, 3] = 5
    for call in (client.save, client.load):
        with pytest.raises(
            PoolError, match="'target' and 'draft' share memory and both name block 5"
        ):
            call(world.pages[:2], {"target": mine, "draft": theirs})


def test_pools_that_cut_one_memory_differently_are_refused(store: MemoryStore) -> None:
    memory = torch.zeros(64, 8, dtype=torch.int32)
    a = KVSpec.mla(layers=1, dim=8, dtype="int32", page_tokens=4)
    b = KVSpec.mla(layers=1, dim=4, dtype="int32", page_tokens=4)
    spaces = [
        Namespace(spec=s, weights="unversioned", model="m", rope="none", component=name)
        for s, name in ((a, "target"), (b, "indexer"))
    ]
    parts = {
        "target": Component(spaces[0], PagedCache.rows([memory])),
        "indexer": Component(spaces[1], PagedCache.rows([memory.view(128, 4)])),
    }
    with pytest.raises(PoolError, match="blocks of 32 and 16 bytes"):
        Client(store, parts, Topology().rank())


@pytest.mark.parametrize("coverage", [None, Window(9)], ids=["every page", "window"])
def test_damage_that_another_client_healed_is_forgotten(
    world: World, store: MemoryStore, coverage: Window | None
) -> None:
    world.save(store, Topology())
    side = world.side(store, Topology().rank())
    pool = side.client._lanes[0].pool
    part = {"target": Component(world.namespace, pool, coverage=coverage)}  # type: ignore[arg-type]
    client = Client(store, part, Topology().rank())
    key = keys_of(store, world.pages[3])[0]
    good = read(store, key)
    write(store, key, bytes(len(good)))
    assert client.load(world.pages, side.slots).pages == 3
    assert client.match(world.pages).pages == 3
    write(store, key, good)
    assert client.load(world.pages, side.slots).pages == 5
    assert client.match(world.pages).pages == 5


def test_a_hint_that_could_not_be_put_is_put_by_a_later_save(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("unikv.transfers.monotonic", lambda: now)
    side = world.side(store, Topology().rank(), filled=True)
    put = store.put

    def refuse_hints(items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        if items and items[0].key.startswith("ns_"):
            return Outcomes([Outcome.FAILED], {0: StoreError("full")})
        return put(items, replace=replace)

    monkeypatch.setattr(store, "put", refuse_hints)
    side.client.save(world.pages[:1], side.slots[:1])
    monkeypatch.setattr(store, "put", put)
    assert list(store.list("ns_")) == []
    now += 31
    side.client.save(world.pages[1:], side.slots[1:], start=1)
    assert len(list(store.list("ns_"))) == 1


class Odd(MemoryStore):
    """Fails without saying why, and answers what a get never answers."""

    def __init__(self, code: Outcome) -> None:
        super().__init__()
        self.code: Outcome | None = None
        self.later = code

    def get(self, spans: Sequence[Span]) -> Outcomes:
        found = super().get(spans)
        return Outcomes([self.code] * len(spans)) if self.code else found


@pytest.mark.parametrize("code", [Outcome.FAILED, Outcome.EXISTED])
def test_a_store_that_fails_without_a_word_is_a_miss(world: World, code: Outcome) -> None:
    store = Odd(code)
    world.save(store, Topology())
    store.code = code
    [(side, report)] = world.load(store, Topology())
    assert report.pages == 0
    assert report.failed[0].kind == "error"
    assert world.holds(side, 0)


def test_a_failing_store_is_not_asked_for_ever(world: World) -> None:
    store = Odd(Outcome.FAILED)
    world.save(store, Topology())
    side = world.side(store, Topology().rank())
    part = {"target": Component(world.namespace, side.client._lanes[0].pool, coverage=Window(2))}
    client = Client(store, part, Topology().rank())
    store.code = Outcome.FAILED
    report = client.load(world.pages, side.slots)
    assert report.pages == 0
    assert report.requests <= 5 * 12  # chunks of a page, few times


def test_a_grid_too_fine_to_read_through_is_left_alone(store: MemoryStore) -> None:
    spec = KVSpec.mha(layers=40, kv_heads=32, head_dim=1, dtype="int32", page_tokens=4)
    fine = World(spec, pages_count=1, options={"layers_per_chunk": 1, "heads_per_chunk": 1})
    assert MOST_CHUNKS < 40 * 32
    fine.save(store, Topology())
    [(_, report)] = World(spec, pages_count=1).load(store, Topology())
    assert report.pages == 0


def test_arguments_of_other_types_are_named(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    for start in (1.5, True, 2**32 - 3):
        with pytest.raises(PoolError, match="start="):
            side.client.save(world.pages, side.slots, start=start)  # type: ignore[arg-type]
    assert list(store.list()) == []
    for pages in (None, iter(world.pages), world.pages[0]):
        with pytest.raises(KeyFormatError, match="want a sequence of page hashes"):
            side.client.match(pages)  # type: ignore[arg-type]
    pool: Any = side.client._lanes[0].pool
    with pytest.raises(SpecError, match="want Component"):
        Client(store, {"target": world.namespace}, Topology().rank())  # type: ignore[dict-item]
    with pytest.raises(SpecError, match="want a rank"):
        Client(store, world.namespace, Topology(), pool)  # type: ignore[arg-type]
    with pytest.raises(PoolError, match=r"staging_bytes=1500000\.0"):
        Client(store, world.namespace, Topology().rank(), pool, staging_bytes=1.5e6)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"ranks=\[\]"):
        Catalog(store, world.namespace, ranks=[])


def test_endpoints_may_come_from_a_generator(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    part = {"target": Component(world.namespace, side.client._lanes[0].pool, coverage=Window(5))}
    client = Client(store, part, Topology().rank())
    assert client.save(world.pages, side.slots, endpoints=(e for e in (3, 5))).pages == 2
