"""Bundle healing: what a load found wrong of any component, the next save puts right."""

from typing import Any

import pytest

from tests.components.bundle_content import Model
from tests.components.bundle_faults import HOWS, Fault, How, answer, check, spoil
from tests.components.bundle_models import MODELS
from tests.components.bundles import contents, filled_store, saved, world_of

CASES: list[Any] = [
    pytest.param(model, name, how, id=f"{title}, {name} {how}")
    for title, model in MODELS.items()
    for name in model.caches
    for how in HOWS
]


@pytest.mark.parametrize(("model", "name", "how"), CASES)
def test_B92_each_component_heals_at_the_save_after_the_load(
    model: Model, name: str, how: How
) -> None:
    world, store = world_of(model), filled_store(model)
    fault = Fault(name, model.pages - 1, how, chunk=1, at=77)
    faults = [(fault, spoil(world, store, fault))]
    parties = world.parties(store, model.writer)
    for party in parties:
        check(party, party.load(), faults)
    reports = [party.poison().fill().save() for party in parties]
    assert sum(report.stored for report in reports) == 1  # it, once, and nothing else
    assert sum(report.components[name].stored for report in reports) == 1
    assert contents(store) == {key: data for key, (data, _) in saved(model).items()}
    for party in parties:
        check(party.poison(), party.poison().load(), [])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_second_save_of_a_whole_store_writes_nothing(model: Model) -> None:
    world, store = world_of(model), filled_store(model)
    for party in world.parties(store, model.writer):
        report = party.fill().save()
        assert (report.stored, report.bytes_written) == (0, 0)
        assert all(part.stored == 0 for part in report.components.values())


def test_a_damaged_state_that_no_endpoint_needed_stays_until_it_is_read() -> None:
    model = MODELS["hybrid: recurrent"]
    world, store = world_of(model), filled_store(model)
    early = Fault("state", 2, "flipped")
    late = Fault("state", 5, "flipped")
    for fault in (early, late):
        spoil(world, store, fault)
    party = world.parties(store, model.writer)[0]
    assert party.load().pages == 5  # state 5 was read and is bad, state 2 was not asked for
    assert party.poison().fill().save().stored == 1
    assert party.poison().load().pages == model.pages
    report = party.client.load(world.path[:3], party.slots(slice(3)))
    assert report.pages == 2


@pytest.mark.parametrize("how", HOWS)
def test_the_answer_names_what_hurts_a_rank_alone(how: How) -> None:
    model = MODELS["hybrid: recurrent"]
    world, store = world_of(model), filled_store(model)
    fault = Fault("target", 1, how, chunk=0)  # layer 0, head 0
    place = spoil(world, store, fault)
    ends = {
        (party.rank.tp, party.rank.pp): answer(party, [(fault, place)]).endpoint
        for party in world.parties(store, model.writer)
    }
    assert ends == {(0, 0): 1, (1, 0): 6, (0, 1): 6, (1, 1): 6}
