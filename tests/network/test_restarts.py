"""Servers that come back empty, or are full, in the middle of a call: right, and well again."""

import pytest

from tests.io_path.lab import until
from tests.network.lab import CHUNKS, PAGES, PATIENCE_S, Lab, Way
from tests.network.place import MOONCAKE, REDIS, S3
from tests.network.places import OnMooncake, OnValkey


@pytest.mark.parametrize("orders", [0, 3])
def test_a_server_restarted_empty_in_the_middle_of_a_load(lab: Lab, orders: int) -> None:
    """The pages read before are right; all else is a miss, and the client goes on."""
    with lab.leaving_nothing("threads") as side:

        def blow() -> None:
            lab.place.kill()
            lab.place.revive()

        struck = lab.strike(side, "load", blow, orders)
        lab.check_load(side, struck.report)
        assert {failure.kind for failure in struck.report.failed} <= {"missing", "error"}
        lab.poison(side)
        lab.works(side)
        assert lab.kinds()["damaged"] == 0


@pytest.mark.parametrize("io", ["threads", "process"])
def test_a_server_restarted_empty_in_the_middle_of_a_save(lab: Lab, io: str) -> None:
    """What was stored before is gone; what came after stays whole; the next save fills the rest."""
    with lab.leaving_nothing(io) as side:
        lab.store.delete(lab.keys())
        lab.put(side)

        def blow() -> None:
            lab.place.kill()
            lab.place.revive()

        struck = lab.strike(side, "save", blow, 3)
        assert lab.world.holds(side, PAGES)
        lab.check_save(struck.report)
        lab.check_stored([])
        lab.works(side)
        lab.check_stored(lab.keys())


@pytest.mark.parametrize("place", [REDIS, S3], indirect=True)
def test_a_server_that_is_full_in_the_middle_of_a_save(lab: Lab) -> None:
    """What it took is right, the report names the rest; reads go on, and so do saves with room."""
    with lab.leaving_nothing("threads") as side:
        lab.store.delete(lab.keys())
        lab.put(side)
        lab.hurt = True
        lab.place.fill_up(PAGES * CHUNKS // 4)
        side.client._deadline_s = PATIENCE_S
        report = lab.save(side)
        claimed = lab.check_save(report)
        assert 0 < len(claimed) < PAGES * CHUNKS
        says_so = lab.place.name == "redis"  # JuiceFS answers 500: as if it were down
        if says_so:
            assert all("full" in failure.reason for failure in report.failed), report.failed[:1]
            assert lab.kinds()["breaker_opened"] == 0
        lab.poison(side)
        until(lambda: says_so or side.client.match(lab.world.pages).pages)
        loaded = lab.load(side)
        lab.check_load(side, loaded)
        assert loaded.pages >= 1
        lab.check_stored(claimed)
        lab.place.make_room()
        if says_so:
            lab.put(side)
            rest = lab.save(side)
            assert (rest.ok, rest.stored) == (True, PAGES * CHUNKS - len(claimed))
        lab.poison(side)
        lab.works(side)
        lab.check_stored(lab.keys())


@pytest.mark.parametrize("place", [REDIS], indirect=True)
def test_a_server_that_evicts_what_is_being_saved(lab: Lab) -> None:
    """What a load gets of the rest is right, match is exact, and with room all comes back."""
    assert isinstance(lab.place, OnValkey)
    with lab.leaving_nothing("threads") as side:
        lab.hurt = True
        lab.place.kill()  # what other tests left would be evicted first
        lab.place.revive()
        lab.place.fill_up(PAGES * CHUNKS // 4)
        lab.place.evict(allowed=True)
        lab.put(side)
        assert lab.save(side).ok
        found = side.client.match(lab.world.pages)
        assert (found.pages < PAGES, found.exact) == (True, True)
        lab.poison(side)
        report = lab.load(side)
        lab.check_load(side, report)
        assert report.pages == found.pages
        lab.place.evict(allowed=False)
        lab.place.make_room()
        lab.poison(side)
        lab.works(side)


@pytest.mark.parametrize("way", ["load", "save"])
@pytest.mark.parametrize("place", [MOONCAKE], indirect=True)
def test_a_cluster_that_others_fill_in_the_middle_of_a_call(lab: Lab, way: Way) -> None:
    """It evicts whatever nobody reads just now: those are misses, and a save stores them again."""
    assert isinstance(lab.place, OnMooncake)
    flood = lab.place.flood
    with lab.leaving_nothing("threads") as side:
        if way == "save":
            lab.store.delete(lab.keys())
            lab.put(side)
        flooded: list[int] = []
        struck = lab.strike(side, way, lambda: flooded.append(flood()), 2)
        assert flooded[0] >= 32  # MiB, of 64
        if way == "load":
            lab.check_load(side, struck.report)
            assert {failure.kind for failure in struck.report.failed} <= {"missing", "error"}
        else:
            assert lab.world.holds(side, PAGES)
            lab.check_save(struck.report)
            lab.check_stored([])
        flood()
        lab.poison(side)
        found = side.client.match(lab.world.pages)
        lab.check_load(side, loaded := lab.load(side))
        assert (loaded.pages, found.exact) == (found.pages, True)
        assert found.pages < PAGES
        lab.works(side)
        assert lab.kinds()["damaged"] == 0
