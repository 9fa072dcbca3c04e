"""Bundles on bad input: one error each, by name, before anything moves."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.components.bundle_content import Cache, Model
from tests.components.bundle_models import EAGLE, GEMMA, HYBRID, latents
from tests.components.bundles import contents, world_of
from unikv import Catalog, Client, Component, KVSpec, Namespace, PagedCache, Topology
from unikv.backends.memory import MemoryStore
from unikv.coverage import Endpoints, EveryPage, Window
from unikv.draft import Drafter
from unikv.errors import PoolError, SpecError, TopologyError

ALONE = Topology().rank()


def components(model: Model = EAGLE) -> dict[str, Component]:
    party = world_of(model).party(MemoryStore(), ALONE)
    return {lane.name: lane.component for lane in party.client._lanes}


def refuse(given: Any, message: str, **options: Any) -> None:
    for make in (Client, Catalog):
        with pytest.raises(SpecError, match=message):
            make(MemoryStore(), given, **(options | ({"rank": ALONE} if make is Client else {})))


def test_two_components_of_one_name_are_refused() -> None:
    found = components()
    refuse({**found, "draft2": found["draft"]}, "'draft2' has a namespace of component 'draft': gi")


def test_slots_of_an_unknown_component_are_refused() -> None:
    party = world_of(HYBRID).party(MemoryStore(), ALONE)
    for call in (party.client.save, party.client.load):
        with pytest.raises(PoolError, match=r"\['indexer', 'state', 'target'\]: want \['state', "):
            call(party.world.path, party.slots(indexer=[[0]]))


def test_slots_of_a_component_that_follows_another_are_refused() -> None:
    party = world_of(EAGLE).party(MemoryStore(), ALONE)
    with pytest.raises(PoolError, match=r"\['draft', 'target'\]: want \['target'\]"):
        party.load(draft=party.slots()["target"])


def test_one_table_for_several_components_with_slots_of_their_own_is_refused() -> None:
    party = world_of(HYBRID).party(MemoryStore(), ALONE)
    with pytest.raises(PoolError, match=r"\['state', 'target'\]: want a mapping by component name"):
        party.client.load(party.world.path, party.slots()["target"])


def test_one_table_is_enough_where_all_others_follow() -> None:
    store = MemoryStore()
    party = world_of(EAGLE).party(store, ALONE).fill()
    assert party.client.save(party.world.path, party.slots()["target"]).ok
    assert party.client.match(party.world.path).pages == EAGLE.pages


@pytest.mark.parametrize("model", [HYBRID, EAGLE], ids=["with state", "without"])
def test_a_path_of_no_page_moves_nothing(model: Model) -> None:
    store = MemoryStore()
    party = world_of(model).party(store, ALONE).fill()
    none = party.slots(slice(0))
    assert party.client.save([], none, endpoints={0}).stored == 0
    report = party.client.load([], none)
    assert (report.pages, report.stopped, report.requests) == (0, None, 0)
    assert party.client.match([]).pages == 0


def test_a_source_that_is_no_component_is_refused() -> None:
    found = components()
    draft = found["draft"]
    wrong = Component(draft.namespace, draft.pool, source="taget")
    refuse({**found, "draft": wrong}, "slots of 'draft' follow from 'taget': want")


def test_a_drafter_of_an_unknown_component_is_refused() -> None:
    refuse(
        components(),
        "'mtp_kv' of drafter 'mtp' is none of 'target', 'draft'",
        drafters=(Drafter("mtp", ("mtp_kv",)),),
    )


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_window_of_no_token_is_refused(tokens: int) -> None:
    with pytest.raises(SpecError, match=f"window tokens {tokens}: want a whole number, 1 or more"):
        Window(tokens)


@pytest.mark.parametrize("rule", [EveryPage(), Window(64)], ids=str)
def test_a_state_without_endpoints_is_refused(rule: Any) -> None:
    namespace = world_of(HYBRID).namespaces["state"]
    with pytest.raises(SpecError, match=r"of kind 'state': want Endpoints\(\)"):
        Component(namespace, coverage=rule)
    assert Component(namespace).coverage == Endpoints()


def test_endpoints_of_what_is_no_state_are_refused() -> None:
    with pytest.raises(SpecError, match=r"of kind 'mha': want EveryPage\(\) or Window"):
        Component(world_of(HYBRID).namespaces["target"], coverage=Endpoints())


@pytest.mark.parametrize("need", ["maybe", None])
def test_a_need_that_is_none_is_refused(need: Any) -> None:
    found = components()
    target = found["target"]
    refuse({"target": Component(target.namespace, target.pool, need=need)}, "want 'required' or 'o")


def test_a_component_without_a_pool_moves_nothing() -> None:
    found = components(HYBRID)
    with pytest.raises(PoolError, match="'state' has no pool: a client moves bytes"):
        Client(MemoryStore(), {**found, "state": Component(found["state"].namespace)}, ALONE)


@pytest.mark.parametrize("block", [3, 16])
def test_rows_that_do_not_fill_blocks_are_refused(block: int) -> None:
    spec = KVSpec.rows(layers=1, row_bytes=4, rows_per_page=8, page_tokens=8)
    namespace = Namespace(spec=spec, weights="unversioned", model="rows", rope="none")
    pool = PagedCache.rows([torch.zeros(6, block, 4, dtype=torch.uint8)])
    with pytest.raises(PoolError, match=f"blocks of {block} tokens: want a divisor of the 8 rows"):
        Client(MemoryStore(), namespace, ALONE, pool)


def test_pages_that_rows_cannot_follow_are_refused_before_anything_moves() -> None:
    model = replace(EAGLE, caches={**EAGLE.caches}, pages=6)
    model.caches["indexer"] = Cache(  # type: ignore[index]  # a dict of this test
        KVSpec.rows(layers=6, row_bytes=4, rows_per_page=2, page_tokens=8), source="target"
    )
    store = MemoryStore()
    party = world_of(model).party(store, ALONE).fill()
    slots = party.slots()["target"].flip(1)  # whole pages, and their tokens backwards
    for call in (party.client.save, party.client.load):
        with pytest.raises(PoolError, match="page 0 of component 'target' begins at slot"):
            call(party.world.path, {"target": slots})
    assert contents(store) == {}


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ("tp1,pp2", r"'?pp=2 on a component that holds only layers .*want pp_layers="),
        ("tp1,pp2:2-2", r"sum to 4, and the component holds model layer 4: want a sum of 5 or"),
    ],
    ids=["untold", "too few"],
)
def test_stages_that_do_not_fit_the_model_are_refused(stages: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        world_of(GEMMA).party(MemoryStore(), Topology.parse(stages).ranks()[0])


def test_layers_0_to_4_of_a_model_of_6_go_by_the_models_stages() -> None:
    party = world_of(GEMMA).party(MemoryStore(), Topology.parse("tp1,pp2:3-3").rank(pp=1))
    boxes = {lane.name: str(lane.box.layers) for lane in party.client._lanes}
    assert boxes == {"target": "0..1", "swa": "3..5"}


def test_stages_of_a_model_of_one_component_still_sum_to_its_layers() -> None:
    model = Model({"target": Cache(latents(range(6)))}, writer="tp1", readers=())
    with pytest.raises(TopologyError, match=r"sum to 7: want a sum of 6, the layers of the model"):
        world_of(model).party(MemoryStore(), Topology.parse("tp1,pp2:3-4").ranks()[0])
