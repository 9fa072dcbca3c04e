"""Bundle staging: what a load may leave behind its endpoint, and when it may not."""

import pytest

from tests.components.bundle_faults import Fault, spoil
from tests.components.bundle_models import DSA, GEMMA, HYBRID
from tests.components.bundles import STAGING, Party, filled_store, world_of
from unikv import Topology
from unikv.backends.memory import MemoryStore
from unikv.client_options import least_staging
from unikv.errors import PoolError


def hybrid(store: MemoryStore, *, small: bool) -> Party:
    """Return a rank of the recurrent model, with all the staging it wants or the least there is."""
    world, rank = world_of(HYBRID), Topology().rank()
    party = world.party(store, rank)
    least = least_staging(party.client._lanes)
    return world.party(store, rank, staging_bytes=least if small else STAGING)


def sparse(store: MemoryStore, *endpoints: int) -> None:
    """Keep the states of these endpoints alone."""
    world = world_of(HYBRID)
    for page, name in enumerate(world.path):
        if page + 1 not in endpoints:
            begins = f"{name}_{world.namespaces['state'].digest}"
            for key in [key for key in store._objects if key.startswith(begins)]:
                del store._objects[key]


def test_by_windows_pages_behind_an_endpoint_that_state_moved_back_may_be_written() -> None:
    store = filled_store(HYBRID)
    sparse(store, 2, 6)
    spoil(world_of(HYBRID), store, Fault("target", 4, "flipped"))
    party = hybrid(store, small=True)
    report = party.load()
    assert report.pages == 2
    assert party.holds({"target": {0, 1, 2, 3}, "state": {1}}) == []  # 2 and 3 came on the way


def test_in_one_batch_pages_behind_such_an_endpoint_stay_as_they_were() -> None:
    store = filled_store(HYBRID)
    sparse(store, 2, 6)
    spoil(world_of(HYBRID), store, Fault("target", 4, "flipped"))
    party = hybrid(store, small=False)
    report = party.load()
    assert report.pages == 2
    assert party.holds({"target": {0, 1}, "state": {1}}) == []


@pytest.mark.parametrize("how", ["flipped", "header"])
def test_in_one_batch_a_state_that_fails_behind_its_kv_leaves_no_kv_behind(how: str) -> None:
    store = filled_store(HYBRID)
    sparse(store, 2, 4, 6)
    world = world_of(HYBRID)
    spoil(world, store, Fault("target", 5, "flipped"))
    spoil(world, store, Fault("state", 3, "flipped" if how == "flipped" else "header"))
    party = hybrid(store, small=False)
    report = party.load()
    assert report.pages == 2  # 5 pages of KV, then the state of endpoint 4 is bad as well
    assert party.holds({"target": {0, 1}, "state": {1}}) == []
    assert report.stopped is not None
    assert "page 4 of 6" in report.stopped


@pytest.mark.parametrize("small", [True, False], ids=["by windows", "in one batch"])
def test_without_windows_or_state_nothing_behind_is_ever_written(*, small: bool) -> None:
    world, rank = world_of(DSA), Topology().rank()
    store = filled_store(DSA)
    spoil(world, store, Fault("indexer", 3, "flipped"))
    party = world.party(store, rank)
    least = least_staging(party.client._lanes)
    party = world.party(store, rank, staging_bytes=least if small else STAGING)
    assert party.load().pages == 3
    assert party.holds(dict.fromkeys(DSA.caches, range(3))) == []


def test_a_window_is_read_whole_before_any_page_is_written() -> None:
    store = filled_store(GEMMA)
    world = world_of(GEMMA)
    spoil(world, store, Fault("swa", 10, "flipped"))
    party = world.party(store, Topology().rank())
    report = party.load()
    assert report.pages == 10  # endpoints 11 to 19 need page 10
    assert party.holds({"target": range(10), "swa": range(10)}) == []


def test_staging_below_one_page_and_its_windows_is_refused() -> None:
    world, store = world_of(GEMMA), filled_store(GEMMA)
    party = world.party(store, Topology().rank())
    least = least_staging(party.client._lanes)
    with pytest.raises(PoolError, match=f"want at least {least}"):
        world.party(store, Topology().rank(), staging_bytes=least - 1)
    again = world.party(store, Topology().rank(), staging_bytes=least)
    assert again.load().pages == GEMMA.pages
    windows = {lane.name: lane.window_pages for lane in party.client._lanes}
    assert windows == {"target": 1, "swa": 16}
