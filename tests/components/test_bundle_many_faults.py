"""Bundle faults at random: many at once, of any components, with staging of any size."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.components.bundle_content import Model
from tests.components.bundle_faults import HOWS, Fault, check, spoil
from tests.components.bundle_models import EAGLE, HYBRID, PACKED, SCALED, SIDECARS
from tests.components.bundles import Party, filled_store, world_of
from unikv import Topology
from unikv.backends.memory import MemoryStore
from unikv.client_options import least_staging
from unikv.store import UNKNOWN_SIZE

models = st.sampled_from([EAGLE, HYBRID, PACKED, SCALED, SIDECARS])


def faults_of(model: Model) -> st.SearchStrategy[list[Fault]]:
    one = st.builds(
        Fault,
        st.sampled_from(sorted(model.caches)),
        st.integers(0, model.pages - 1),
        st.sampled_from(HOWS),
        st.integers(0, 5),
        st.integers(0, 10_000),
    )
    return st.lists(one, max_size=6, unique_by=lambda fault: (fault.name, fault.page))


def party_of(data: st.DataObject, model: Model, **options: Any) -> tuple[Party, list[Any]]:
    world, store = world_of(model), filled_store(model)
    faults = data.draw(faults_of(model))
    places = [spoil(world, store, fault) for fault in faults]
    topology = Topology.parse(data.draw(st.sampled_from(model.readers)))
    rank = data.draw(st.sampled_from(topology.ranks()))
    return world.party(store, rank, **options), list(zip(faults, places, strict=True))


@given(models, st.data())
def test_a_load_in_one_batch_touches_nothing_behind_its_endpoint(
    model: Model, data: st.DataObject
) -> None:
    party, faults = party_of(data, model)
    check(party, party.load(), faults)


class Blind(MemoryStore):
    """A store that finds every key when asked, of a size that it does not tell."""

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        return [UNKNOWN_SIZE] * len(keys)


@given(models, st.data())
def test_what_a_stat_did_not_tell_the_read_does(model: Model, data: st.DataObject) -> None:
    party, faults = party_of(data, model)
    store = Blind()
    store._objects = dict(party.client._store._objects)  # type: ignore[attr-defined]
    blind = party.world.party(store, party.rank)
    assert blind.client.match(party.world.path)[:2] == (model.pages, False)
    check(blind, blind.load(), faults)


@given(models, st.data(), st.integers(0, 3))
def test_a_load_by_windows_ends_where_one_batch_does(
    model: Model, data: st.DataObject, more: int
) -> None:
    party, faults = party_of(data, model)
    least = least_staging(party.client._lanes)
    page = sum(lane.read.page_bytes for lane in party.client._lanes)
    small = party.world.party(party.client._store, party.rank, staging_bytes=least + more * page)
    check(small, small.load(), faults, loose=range(model.pages))
