"""Deployments: what one fleet wrote to a real server another reads; and bundles of components."""

import pytest

from tests.components.bundle_content import Model
from tests.components.bundle_faults import check
from tests.components.bundle_models import GLM, HYBRID, SIDECARS
from tests.components.bundles import contents as bundle_contents
from tests.components.bundles import filled_store, world_of
from tests.network.lab import Lab
from tests.topology.oracle import Deployment
from tests.topology.test_pairs import move, pairs, world_for
from unikv import Topology
from unikv.store import Span, Store

SAMPLE = [pairs()[n] for n in (2, 5, 8, 10, 14, 20, 41, 44)]


def read_all(store: Store, keys: list[str]) -> dict[str, bytes]:
    """Return whole objects, by key."""
    sizes = dict(zip(keys, store.stat(keys), strict=True))
    found = {key: bytearray(size or 0) for key, size in sizes.items()}
    spans = [Span(key, 0, len(data), [memoryview(data)]) for key, data in found.items()]
    assert store.get(spans).ok
    return {key: bytes(data) for key, data in found.items()}


@pytest.mark.parametrize(("name", "writer", "reader", "number"), SAMPLE, ids=str)
def test_any_deployment_reads_what_any_other_wrote(
    lab: Lab, name: str, writer: Deployment, reader: Deployment, number: int
) -> None:
    world = world_for(name, writer, reader)
    move(world, lab.store, writer, reader, number)
    assert read_all(lab.store, list(world.objects)) == world.objects


@pytest.mark.parametrize(
    "model", [HYBRID, SIDECARS, GLM], ids=["windows and state", "sidecars", "61 layers, indexer"]
)
def test_bundles_are_the_same_objects_and_load(lab: Lab, model: Model) -> None:
    world = world_of(model)
    world.save(lab.store)
    right = bundle_contents(filled_store(model))
    assert read_all(lab.store, list(right)) == right
    for topology in ("tp1", *model.readers):
        for party in world.parties(lab.store, topology, seed=3):
            assert party.client.match(world.path).pages == len(world.path)
            check(party, party.load(), [])


def test_a_bundle_that_lacks_a_component_ends_where_the_others_can_restore(lab: Lab) -> None:
    world = world_of(HYBRID)
    world.save(lab.store)
    digest = world.namespaces["state"].digest
    right = bundle_contents(filled_store(HYBRID))
    last = world.path[-1]
    gone = [key for key in right if key.startswith(f"{last}_{digest}")]
    assert gone
    assert lab.store.delete(gone).ok
    party = world.party(lab.store, Topology().rank(), seed=4)
    report = party.load()
    end = len(world.path) - 1
    assert report.pages == end
    assert party.holds({"target": range(end), "state": (end - 1,)}, range(len(world.path))) == []
    if lab.place.exact:
        assert party.client.match(world.path).pages == end
    every = [key for key in right if f"_{digest}" in key]
    lab.store.delete(every)
    party = world.party(lab.store, Topology().rank(), seed=5)
    assert party.load().pages == 0
    assert party.client.match(world.path).pages == 0
    assert party.holds({"target": (), "state": ()}) == []
    saved = party.fill().save()
    assert saved.components["target"].stored == 0
    assert saved.components["state"].stored > 0
