"""Client: bad input gets one clear error that names the value and a right one; nothing moves."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.client.world import World
from unikv import Client, Component, KVSpec, Namespace, PagedCache, Topology
from unikv.backends.memory import MemoryStore
from unikv.errors import GridError, KeyFormatError, PoolError, SpecError, UnikvError


def keys(store: MemoryStore) -> list[str]:
    return [entry.key for entry in store.list()]


def test_a_writer_not_aligned_with_its_grid_is_told_which_grids_would_fit(
    store: MemoryStore,
) -> None:
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=4, dtype="int32", page_tokens=4)
    world = World(spec)  # one chunk holds all layers and heads
    side = world.side(store, Topology(tp=2, pp=2).rank(tp=1, pp=0), filled=True)
    with pytest.raises(GridError, match=r"layers_per_chunk=3.*heads_per_chunk=2"):
        side.client.save(world.pages, side.slots)
    assert keys(store) == []


def test_B49_a_reader_may_hold_any_box_of_that_grid(store: MemoryStore) -> None:
    spec = KVSpec.mha(layers=6, kv_heads=4, head_dim=4, dtype="int32", page_tokens=4)
    world = World(spec)
    world.save(store, Topology())
    for side, report in world.load(store, Topology(tp=2, pp=3)):
        assert report.pages == 5
        assert world.holds(side, 5)
        assert report.amplification == 2  # the other head group shares its slabs


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s[:-1], "5 pages, but slots .* for 4"),
        (lambda s: s[:, :-1], r"\(5, 3\)"),
        (lambda s: s + 1_000, "want 0 to 32"),
        (lambda s: s - 1_000, "-"),
        (lambda s: s.float(), "float32"),
    ],
    ids=["count", "shape", "above", "below", "dtype"],
)
def test_slots_that_do_not_fit_are_refused_before_anything_moves(
    world: World, store: MemoryStore, change: Any, says: str
) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    for call in (side.client.save, side.client.load):
        with pytest.raises(PoolError, match=says):
            call(world.pages, change(side.slots))
    assert keys(store) == []


def test_two_pages_into_one_slot_are_refused(world: World, store: MemoryStore) -> None:
    world.save(store, Topology())
    side = world.side(store, Topology().rank())
    slots = side.slots.clone()
    slots[3, 1] = slots[2, 2]
    with pytest.raises(PoolError, match=str(int(slots[2, 2]))):
        side.client.load(world.pages, slots)
    assert world.holds(side, 0)


@pytest.mark.parametrize("page", ["", "ab" * 31, "AB" * 32, "zz" * 32, "ab" * 32 + "\n", 7])
def test_a_text_that_is_no_page_hash_is_refused(
    world: World, store: MemoryStore, page: Any
) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    pages = [*world.pages[:4], page]
    for call in (side.client.save, side.client.load):
        with pytest.raises(KeyFormatError):
            call(pages, side.slots)
    with pytest.raises(KeyFormatError):
        side.client.match(pages)
    assert keys(store) == []


def pool(**change: Any) -> PagedCache:
    size: dict[str, Any] = {"layers": 6, "heads": 4, "dk": 3, "dv": 5, "dtype": torch.int32}
    size |= change
    k = [torch.zeros(33, size["heads"], size["dk"], dtype=size["dtype"])] * 1
    k = [t.clone() for t in k for _ in range(size["layers"])]
    v = [torch.zeros(33, size["heads"], size["dv"], dtype=size["dtype"]) for _ in k]
    return PagedCache.slots(k, v)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 5}, "5.*6"),
        ({"heads": 2}, "2.*4"),
        ({"dk": 4}, "4.*3|16.*12"),
        ({"dv": 3}, "3.*5|12.*20"),
        ({"dtype": torch.float32}, "float32.*int32"),
    ],
    ids=str,
)
def test_a_pool_that_does_not_hold_the_ranks_box_is_refused(
    world: World, store: MemoryStore, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(PoolError, match=says):
        Client(store, world.namespace, Topology().rank(), pool(**change))


def test_construction_names_what_is_missing(world: World, store: MemoryStore) -> None:
    ns, rank = world.namespace, Topology().rank()
    with pytest.raises(PoolError, match=r"target.*no pool"):
        Client(store, ns, rank)
    with pytest.raises(PoolError, match=r"staging_bytes=4096.*at least"):
        Client(store, ns, rank, pool(), staging_bytes=4096)
    with pytest.raises(SpecError, match="writers='all'"):
        Client(store, ns, rank, pool(), writers="all")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"'draft'.*'target'"):
        Client(store, {"draft": Component(ns, pool())}, rank)
    with pytest.raises(SpecError, match="no components"):
        Client(store, {}, rank)
    with pytest.raises(SpecError, match="drop the argument"):
        Client(store, {"target": Component(ns, pool())}, rank, pool())
    with pytest.raises(PoolError, match="start=-1"):
        Client(store, ns, rank, pool()).save([], torch.zeros(0, 4, dtype=torch.int64), start=-1)


def test_slots_by_name_must_name_the_components(world: World, store: MemoryStore) -> None:
    side = world.side(store, Topology().rank(), filled=True)
    with pytest.raises(PoolError, match=r"\['draft'\].*\['target'\]"):
        side.client.save(world.pages, {"draft": side.slots})


def test_every_error_is_a_unikv_error() -> None:
    assert issubclass(PoolError, UnikvError)
    assert issubclass(PoolError, ValueError)


def test_two_components_are_saved_and_restored_together(world: World, store: MemoryStore) -> None:
    spec = KVSpec.mla(layers=2, dim=3, dtype="int32", page_tokens=4)
    extra = World(spec)
    ns2 = Namespace(
        spec=spec, weights="unversioned", model="world", rope="none", component="indexer"
    )
    extra = replace(extra)
    extra.namespace = ns2
    a = world.side(store, Topology().rank(), filled=True)
    b_rows = [t.clone() for t in extra.kv[0].flatten(2).unbind()]
    b_pool = PagedCache.rows(b_rows)
    slots = {"target": a.slots, "indexer": torch.arange(20).view(5, 4)}
    both = {
        "target": Component(world.namespace, a.client._lanes[0].pool),
        "indexer": Component(ns2, b_pool),
    }
    client = Client(store, both, Topology().rank())
    assert client.save(world.pages, slots).stored == 60 + 5
    gone = [e.key for e in store.list(world.pages[2]) if ns2.digest in e.key]
    store.delete(gone)
    for t in b_rows:
        t.fill_(-1)
    report = client.load(world.pages, slots)
    assert report.pages == 2
    assert (b_rows[0][8:] == -1).all()
    assert torch.equal(b_rows[1][:8], extra.kv[0][1, :8].flatten(1))
    with pytest.raises(PoolError, match="mapping by component name"):
        client.load(world.pages, a.slots)
