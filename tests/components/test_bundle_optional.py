"""Optional components: one that is missing or bad costs itself alone, and the report says it."""

from typing import NamedTuple

import pytest

from tests.components.bundle_faults import HOWS, SEEN_BY_STAT, Fault, How, check, spoil
from tests.components.bundle_models import EAGLE, SIDECARS
from tests.components.bundles import Party, filled_store, world_of
from unikv import Catalog, Topology
from unikv.backends.memory import MemoryStore

ALONE = Topology().rank()


def draft_on_four_of_six() -> MemoryStore:
    """Return a store of 6 pages, the last two of them without a draft."""
    store = filled_store(EAGLE)
    for page in (4, 5):
        spoil(world_of(EAGLE), store, Fault("draft", page, "missing"))
    return store


class Draft(NamedTuple):
    need: str
    pages: int
    valid: int


@pytest.mark.parametrize("draft", [Draft("required", 4, 4), Draft("optional", 6, 4)])
def test_B30_four_pages_with_a_draft_and_two_without(draft: Draft) -> None:
    world, store = world_of(EAGLE), draft_on_four_of_six()
    party = world.party(store, ALONE, fields={"need": {"draft": draft.need}})
    found, report = party.client.match(world.path), party.load()
    assert (found.pages, report.pages) == (draft.pages, draft.pages)
    assert report.valid["draft"] == draft.valid
    assert party.holds({"target": range(draft.pages), "draft": range(4)}) == []
    key = f"{world.path[4]}_{world.namespaces['draft'].digest}_L0-1_H0"
    if draft.need == "optional":
        assert found.valid == {"draft": 4}
        assert report.dropped == {"draft": f"{key} is not stored"}
        assert report.stopped is None
    else:
        assert (found.valid, report.dropped) == ({}, {})
        assert report.stopped == f"page 4 of 6: {key} is not stored"


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("page", range(EAGLE.pages))
def test_a_draft_that_fails_at_a_page_is_good_up_to_it(page: int, how: How) -> None:
    world, store = world_of(EAGLE), filled_store(EAGLE)
    place = spoil(world, store, Fault("draft", page, how))
    party = world.party(store, ALONE)
    report = party.load()
    assert (report.pages, report.valid) == (6, {"target": 6, "draft": page})
    assert place.key in report.dropped["draft"]
    assert report.stopped is None
    assert report.failed == ()
    assert party.holds({"target": range(6), "draft": range(page)}) == []


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", ["draft", "memory"])
@pytest.mark.parametrize("page", range(SIDECARS.pages))
def test_an_optional_window_or_state_serves_the_endpoint_or_nothing(
    name: str, page: int, how: How
) -> None:
    world, store = world_of(SIDECARS), filled_store(SIDECARS)
    fault = Fault(name, page, how)
    place = spoil(world, store, fault)
    party = world.party(store, ALONE)
    report = party.load()
    needed = page in {"draft": (4, 5, 6), "memory": (6,)}[name]
    assert (report.pages, report.valid[name]) == (7, 0 if needed else 7)
    assert set(report.dropped) == ({name} if needed else set())
    check(party, report, [(fault, place)])


def test_a_draft_that_fails_behind_the_end_is_not_called_dropped() -> None:
    world, store = world_of(EAGLE), filled_store(EAGLE)
    spoil(world, store, Fault("target", 2, "flipped"))
    spoil(world, store, Fault("draft", 4, "flipped"))
    report = world.party(store, ALONE).load()
    assert (report.pages, report.valid) == (2, {"target": 2, "draft": 2})
    assert report.dropped == {}


def without(party: Party, name: str, *pages: int) -> dict[str, object]:
    """Return slots in which a component has none for some pages."""
    table = party.slots()[name].clone()
    table[list(pages)] = -1
    return {name: table}


def test_an_optional_state_without_a_slot_for_the_endpoint_is_dropped_with_the_reason() -> None:
    party = world_of(SIDECARS).party(filled_store(SIDECARS), ALONE)
    report = party.load(**without(party, "memory", 6))
    assert (report.pages, report.valid["memory"]) == (7, 0)
    assert report.dropped == {"memory": "page 6: component 'memory' has no slots for it"}


def test_a_window_without_slots_outside_of_it_is_restored_and_valid() -> None:
    party = world_of(SIDECARS).party(filled_store(SIDECARS), ALONE)
    report = party.load(**without(party, "swa", 0, 1, 2, 3))
    assert report.pages == 7
    assert report.valid == {"target": 7, "swa": 7, "draft": 7, "memory": 7}
    assert (
        party.holds({"target": range(7), "swa": (4, 5, 6), "draft": (4, 5, 6), "memory": (6,)})
        == []
    )


def test_a_required_window_without_a_slot_that_the_endpoint_needs_says_so() -> None:
    party = world_of(SIDECARS).party(filled_store(SIDECARS), ALONE)
    report = party.load(**without(party, "swa", 5))
    assert report.pages == 5
    assert report.stopped == "page 5 of 7: component 'swa' has no slots for it"
    assert report.failed == ()


def test_a_draft_of_every_page_without_slots_ends_there_with_the_reason() -> None:
    world = world_of(EAGLE)
    party = world.party(filled_store(EAGLE), ALONE, fields={"source": {"draft": None}})
    report = party.load(draft=without(party, "target", 3)["target"])
    assert (report.pages, report.valid["draft"]) == (6, 3)
    assert report.dropped == {"draft": "page 3: component 'draft' has no slots for it"}


@pytest.mark.parametrize("how", SEEN_BY_STAT)
def test_a_catalog_tells_up_to_where_optional_components_are_good(how: How) -> None:
    world, store = world_of(SIDECARS), filled_store(SIDECARS)
    spoil(world, store, Fault("draft", 5, how))
    found = Catalog(store, world.components(), drafters=SIDECARS.drafters).match(world.path)
    assert (found.pages, found.valid) == (7, {"draft": 0, "memory": 7})
