"""Bundles over many ranks: pages dealt out, replicas that share them, and grids that differ."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.components.bundle_content import Cache, Model
from tests.components.bundle_faults import HOWS, Fault, How, check, spoil
from tests.components.bundle_models import (
    DSA,
    HYBRID,
    NARROW,
    SIDECARS,
    STATE,
    cuts,
    heads,
    indexer,
    latents,
    recurrent,
)
from tests.components.bundles import POISON, Party, contents, filled_store, pool_of, world_of
from unikv import Client, Topology
from unikv.backends.memory import MemoryStore
from unikv.hints import announce
from unikv.store import Outcomes, Span

DEALT = Model(
    {
        "target": Cache(latents(range(4)), fields=cuts(0, 2, 4)),
        "indexer": Cache(indexer(range(4), rows=2), source="target", sharded=False),
    },
    writer="tp1,pp1,cp2",
    readers=("tp1,pp1,cp3", "tp2,pp2:3-1,cp2"),
)
DEALT_WINDOW = Model(
    {
        "target": Cache(heads(range(2)), fields=cuts(0, 2, per=1)),
        "swa": Cache(heads(range(2, 4)), NARROW, fields=cuts(0, 2, per=1)),
        "state": Cache(recurrent([4]), STATE, fields=cuts(0, 1, per=1)),
    },
    writer="tp2,pp1,cp2",
    readers=("tp1,pp1,cp3", "tp4,pp1,cp2", "tp1"),
    pages=7,
)
SHARED = {"latents and gathered rows": DEALT, "windows, and state on each": DEALT_WINDOW}


@pytest.mark.parametrize("model", SHARED.values(), ids=SHARED)
def test_context_ranks_store_what_one_rank_stores(model: Model) -> None:
    store = MemoryStore()
    alone = world_of(model).party(store, Topology().rank()).fill()
    assert alone.save().ok
    assert contents(filled_store(model)) == contents(store)


@pytest.mark.parametrize("model", SHARED.values(), ids=SHARED)
def test_context_ranks_restore_their_pages_and_all_of_what_each_keeps(model: Model) -> None:
    world = world_of(model)
    for topology in model.readers:
        for party in world.parties(filled_store(model), topology, seed=2):
            check(party, party.load(), [])
            found = party.client.match(world.path)
            assert (found.pages, found.first_missing) == (model.pages, None)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("model", SHARED.values(), ids=SHARED)
def test_a_fault_ends_the_prefix_of_those_that_own_or_keep_the_page(model: Model, how: How) -> None:
    world = world_of(model)
    for name in model.caches:
        for page in range(model.pages):
            store = filled_store(model)
            fault = Fault(name, page, how, chunk=page, at=page * 13)
            place = spoil(world, store, fault)
            for rank in Topology.parse(model.readers[0]).ranks():
                party = world.party(store, rank, seed=page)
                check(party, party.load(), [(fault, place)])


TOKENS_DEALT = Model(
    {
        "target": Cache(latents(range(2)), fields={"phases": 2}),
        "indexer": Cache(indexer(range(2)), source="target"),
    },
    writer="tp1",
    readers=(),
)


def test_an_indexer_of_a_row_a_page_follows_kv_whose_tokens_are_dealt_out() -> None:
    world, store = world_of(TOKENS_DEALT), MemoryStore()
    whole = world.party(store, Topology().rank(), seed=3).fill()  # the ranks lay pages as it does
    tokens = whole.memory["target"][0].reshape(2, -1, 4, 2, 12)
    slots = torch.from_numpy(whole.tables["target"][:, ::8] // 8) * 4 + torch.arange(4)
    ranks = []
    for rank in Topology(dcp=2).ranks():
        mine = {
            "target": tokens[:, :, :, rank.dcp].reshape(2, -1, 1, 12).copy(),
            "indexer": whole.memory["indexer"][0].copy(),
        }
        specs = {name: one.spec for name, one in TOKENS_DEALT.caches.items()}
        pools = {name: pool_of(specs[name], [mine[name]]) for name in mine}
        ranks.append((Client(store, world.components(pools), rank), list(mine.values())))
    for client, _ in ranks:
        assert client.save(world.path, slots).ok
    assert contents(store) == contents(filled_store(TOKENS_DEALT))
    for client, memories in ranks:
        before = [memory.copy() for memory in memories]
        for memory in memories:
            memory.fill(POISON)
        assert client.load(world.path, slots).pages == 6
        assert all(map(np.array_equal, memories, before))


REPLICAS = Model(
    {
        "target": Cache(latents(range(2))),
        "indexer": Cache(indexer(range(2), rows=4), source="target"),
        "state": Cache(recurrent([2]), STATE, fields=cuts(0, 1, per=1)),
    },
    writer="tp8",
    readers=(),
)
"""Over 8 ranks latents and rows have 8 copies each, and the 4 groups of state 2."""


def copies(party: Party, name: str) -> tuple[int, int]:
    """Return which copy of a component a rank has, and how many there are."""
    return (party.rank.tp % 2, 2) if name == "state" else (party.rank.tp, 8)


def test_replicas_that_save_at_once_store_each_page_of_each_component_once() -> None:
    world, whole = world_of(REPLICAS), MemoryStore()
    for rank in Topology(tp=8).ranks():
        store = MemoryStore()
        party = world.party(store, rank).fill()
        report, made = party.save(), contents(store)
        for name, part in report.components.items():
            index, count = copies(party, name)
            mine = [page for page in world.path if int(page[:16], 16) % count == index]
            written = [key[:64] for key in made if world.namespaces[name].digest in key[64:]]
            assert sorted(written) == sorted(mine)
            assert (part.stored, part.existed, part.pages) == (len(mine), 0, len(mine))
        assert not {key for key in made if not key.startswith("ns_")} & whole._objects.keys()
        whole._objects.update(store._objects)
    reader = world.party(whole, Topology().rank())
    assert reader.load().pages == 6
    assert reader.holds({"target": range(6), "indexer": range(6), "state": (5,)}) == []


@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("endpoints", [None, {6}], ids=["all", "one endpoint"])
def test_what_a_silent_replica_leaves_the_others_fill_at_their_second_save(
    silent: int, endpoints: set[int] | None
) -> None:
    world, store = world_of(REPLICAS), MemoryStore()
    parties = world.parties(store, "tp8")
    working = [party.fill() for party in parties if party.rank.tp % 2 != silent]
    for party in working:
        party.save(endpoints=endpoints)
    reader = world.party(store, Topology().rank())
    for party in working:
        party.save(endpoints=endpoints)
    assert reader.load().pages == 6
    assert reader.holds({"target": range(6), "indexer": range(6), "state": (5,)}) == []


def test_with_first_writers_replica_0_stores_all_of_each_component() -> None:
    world, store = world_of(REPLICAS), MemoryStore()
    for party in world.parties(store, "tp8", writers="first"):
        report = party.fill().save()
        stored = {name: part.stored for name, part in report.components.items()}
        first = {name: copies(party, name)[0] == 0 for name in stored}
        assert stored == {name: 6 if first[name] else 0 for name in stored}


# Grids that differ: one namespace a component and load.


class Watched(MemoryStore):
    """A store that tells which namespaces were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.read |= {span.key[65:97] for span in spans if not span.key.startswith("ns_")}
        return super().get(spans)


def other_grid(model: Model) -> Model:
    """Return the same model with every layer and head in a chunk of its own."""
    caches = {}
    for name, one in model.caches.items():
        fine = {"layers_per_chunk": 1}
        if one.spec.has_heads:
            fine["heads_per_chunk"] = 1
        caches[name] = replace(one, fields=fine)
    return replace(model, caches=caches)


FINE = {model: other_grid(model) for model in (HYBRID, SIDECARS, DSA)}


def put(store: MemoryStore, model: Model, **pages: Iterable[int]) -> None:
    """Put these pages of these components into a store, as their writers left them."""
    world, found = world_of(model), filled_store(model)
    for name, some in pages.items():
        announce(store, world.namespaces[name])
        for page in some:
            begins = f"{world.path[page]}_{world.namespaces[name].digest}"
            store._objects.update(
                {key: held for key, held in found._objects.items() if key.startswith(begins)}
            )


def read_through(store: Watched, model: Model) -> set[str]:
    """Return the components that were read by their own grid."""
    own = world_of(model).namespaces
    return {name for name in own if own[name].digest in store.read}


def test_a_states_sibling_is_read_where_there_is_none_of_its_own() -> None:
    store = Watched()
    put(store, HYBRID, target=range(6))
    put(store, FINE[HYBRID], state=(3, 5))
    party = world_of(HYBRID).party(store, Topology().rank())
    assert party.client.match(party.world.path).pages == 6
    assert party.load().pages == 6
    assert party.holds({"target": range(6), "state": (5,)}) == []
    assert read_through(store, HYBRID) == {"target"}


def test_where_both_reach_as_far_its_own_grid_is_read() -> None:
    store = Watched()
    put(store, HYBRID, target=range(6), state=(5,))
    put(store, FINE[HYBRID], target=range(6), state=(1, 3, 5))
    party = world_of(HYBRID).party(store, Topology().rank())
    assert party.load().pages == 6
    assert read_through(store, HYBRID) == {"target", "state"}


@pytest.mark.parametrize("topology", ["tp1", "tp2,pp2:4-4"])
def test_a_state_behind_what_the_kv_reaches_is_not_chosen(topology: str) -> None:
    store = Watched()
    put(store, HYBRID, target=range(5), state=(3,))
    put(store, FINE[HYBRID], target=range(2), state=(5,))
    for party in world_of(HYBRID).parties(store, topology):
        stage = party.held["target"].layers and party.held["state"].layers
        if stage:
            assert party.client.match(party.world.path).pages == 4
            report = party.load()
            assert report.pages == 4
            assert party.holds({"target": range(4), "state": (3,)}) == []


def test_a_window_and_its_sidecar_are_chosen_for_the_endpoint_of_the_others() -> None:
    store = Watched()
    put(store, SIDECARS, target=range(7), swa=range(4), draft=range(7), memory=range(3))
    put(store, FINE[SIDECARS], swa=range(3, 7), memory=(6,))
    party = world_of(SIDECARS).party(store, Topology().rank())
    report = party.load()
    assert (report.pages, report.valid) == (7, dict.fromkeys(SIDECARS.caches, 7))
    assert read_through(store, SIDECARS) == {"target", "draft"}
    window = (4, 5, 6)
    assert party.holds({"target": range(7), "swa": window, "draft": window, "memory": (6,)}) == []


def test_an_optional_component_narrows_nothing() -> None:
    store = Watched()
    put(store, DSA, target=range(6), indexer=range(2))
    put(store, FINE[DSA], target=range(4), indexer=range(4))
    party = world_of(DSA).party(store, Topology().rank(), fields={"need": {"indexer": "optional"}})
    report = party.load()
    assert (report.pages, report.valid["indexer"]) == (6, 4)
    assert read_through(store, DSA) == {"target"}


def test_without_siblings_each_is_read_by_its_own_grid() -> None:
    store = Watched()
    put(store, HYBRID, target=range(6))
    put(store, FINE[HYBRID], state=(5,))
    party = world_of(HYBRID).party(store, Topology().rank(), siblings=False)
    assert (party.client.match(party.world.path).pages, party.load().pages) == (0, 0)
