"""Bundle faults: each component missing, short or damaged at each page, for every kind of model."""

from dataclasses import replace
from typing import Any

import pytest

from tests.components.bundle_content import Model
from tests.components.bundle_faults import HOWS, SEEN_BY_STAT, Fault, How, check, spoil
from tests.components.bundle_models import MODELS
from tests.components.bundles import contents, filled_store, world_of
from unikv import Catalog, Topology

CASES: list[Any] = [
    pytest.param(model, name, how, id=f"{title}, {name} {how}")
    for title, model in MODELS.items()
    for name in model.caches
    for how in HOWS
]


@pytest.mark.parametrize(("model", "name", "how"), CASES)
def test_B27_the_endpoint_is_the_one_that_the_oracle_finds(
    model: Model, name: str, how: How
) -> None:
    world = world_of(model)
    for page in range(model.pages):
        store = filled_store(model)
        fault = Fault(name, page, how, chunk=page, at=page * 31 + 7)
        place = spoil(world, store, fault)
        topology = Topology.parse(model.readers[page % len(model.readers)])
        for rank in topology.ranks():
            party = world.party(store, rank, seed=page)
            found = party.client.match(world.path)
            right = check(party, party.load(), [(fault, place)])
            if how in SEEN_BY_STAT:
                assert found.pages == right.endpoint
                assert dict(found.valid) == {
                    other: right.valid[other]
                    for other, one in model.caches.items()
                    if one.need == "optional"
                }
                catalog = Catalog(store, world.components(), ranks=[rank], drafters=model.drafters)
                assert catalog.match(world.path) == found


@pytest.mark.parametrize("how", SEEN_BY_STAT)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_catalog_of_all_ranks_finds_what_one_rank_of_all_would(model: Model, how: How) -> None:
    world = world_of(model)
    for name in model.caches:
        for page in range(model.pages):
            store = filled_store(model)
            spoil(world, store, Fault(name, page, how, chunk=page))
            whole = world.party(store, Topology().rank()).client.match(world.path)
            for topology in (None, *model.readers):
                ranks = Topology.parse(topology).ranks() if topology else None
                catalog = Catalog(store, world.components(), ranks=ranks, drafters=model.drafters)
                assert catalog.match(world.path) == whole


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_order_in_which_components_are_declared_changes_nothing(model: Model) -> None:
    turned = replace(model, caches=dict(list(model.caches.items())[::-1]))
    assert contents(filled_store(turned)) == contents(filled_store(model))
    party = world_of(turned).party(filled_store(model), Topology().rank(), seed=1)
    check(party, party.load(), [])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_reader_restores_all_that_the_writers_stored(model: Model) -> None:
    world = world_of(model)
    for topology in model.readers:
        store = filled_store(model)
        for party in world.parties(store, topology, seed=1):
            found = party.client.match(world.path)
            report = party.load()
            check(party, report, [])
            assert found.pages == report.pages == model.pages
            assert found.exact
            assert found.first_missing is None
        assert (
            Catalog(store, world.components(), drafters=model.drafters).match(world.path) == found
        )
