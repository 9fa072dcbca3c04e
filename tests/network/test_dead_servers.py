"""Servers killed or frozen in the middle of a call: in time, no wrong byte, then well again."""

import time
from collections.abc import Callable

import pytest

from tests.client.world import Side
from tests.network.lab import DEADLINE_S, PAGES, Lab, Way
from unikv.events import KINDS

FAST_S = 0.1


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def calls_miss_fast(lab: Lab, side: Side) -> None:
    """A dead server costs a few calls at most; then every call misses at once, whatever it is."""
    guard = side.client._transfers.guard
    for _ in range(3):  # until three orders in a row have failed as a whole
        if guard.silent is None:
            assert timed(lambda: lab.load(side)) <= DEADLINE_S * 1.2
    assert guard.silent is not None
    took = []
    for _ in range(4):
        took.append(timed(lambda: side.client.match(lab.world.pages)))
        took.append(timed(lambda: lab.load(side)))
        begun = time.monotonic()
        report = lab.save(side)
        # It need not have copied anything: see below.
        took.append(time.monotonic() - begun - report.seconds.get("pack", 0.0))
    assert sorted(took)[-2] < FAST_S, took  # all but one, on a busy machine
    assert lab.world.holds(side, 0)


def check_events(lab: Lab) -> None:
    """What opened was closed, and nothing was told that should not have been."""
    kinds = lab.kinds()
    assert kinds["breaker_opened"] >= 1
    assert kinds["breaker_opened"] == kinds["breaker_closed"]
    assert not kinds["damaged"]
    assert set(kinds) <= set(KINDS)
    lab.events.clear()


@pytest.mark.parametrize(
    ("io", "way"), [("threads", "save"), ("threads", "load"), ("process", "save")]
)
def test_a_server_killed_in_the_middle_costs_no_byte_and_little_time(
    lab: Lab, io: str, way: Way
) -> None:
    with lab.leaving_nothing(io) as side:
        for orders in (0, 4) if io == "threads" else (3,):
            prepare(lab, side, way)
            struck = lab.strike(side, way, lab.place.kill, orders)
            assert struck.timely, struck
            keep = lab.place.keeps and way == "save" and not struck.done
            claimed = check(lab, side, way, struck.report)
            assert struck.done or struck.report.failed
            calls_miss_fast(lab, side)
            lab.place.revive(empty=not keep)
            if keep:
                lab.check_stored(claimed)
            lab.works(side)
            check_events(lab)


@pytest.mark.parametrize(
    ("io", "way"), [("threads", "save"), ("threads", "load"), ("process", "load")]
)
def test_a_server_frozen_in_the_middle_costs_one_deadline(lab: Lab, io: str, way: Way) -> None:
    with lab.leaving_nothing(io) as side:
        for orders in (0, 4) if io == "threads" else (3,):
            prepare(lab, side, way)
            struck = lab.strike(side, way, lab.place.freeze, orders)
            try:
                assert struck.timely, struck
                assert struck.done or struck.seconds >= DEADLINE_S * 0.8
                claimed = check(lab, side, way, struck.report)
                calls_miss_fast(lab, side)
            finally:
                lab.place.thaw()
            if way == "save":
                lab.check_stored(claimed)
            lab.works(side)
            check_events(lab)


def prepare(lab: Lab, side: Side, way: Way) -> None:
    """Have everything stored, or nothing and the pool full."""
    if way == "load":
        lab.save_all()
        lab.poison(side)
    else:
        lab.store.delete(lab.keys())
        lab.put(side)


def check(lab: Lab, side: Side, way: Way, report: object) -> list[str]:
    """Check a report and the pool; return what the report says is stored."""
    if way == "load":
        lab.check_load(side, report)  # type: ignore[arg-type]
        lab.poison(side)
        return []
    assert lab.world.holds(side, PAGES)  # as it was
    claimed = lab.check_save(report)  # type: ignore[arg-type]
    lab.poison(side)
    return claimed


def open_breaker(lab: Lab) -> Side:
    """Kill the server and have a client notice."""
    side = lab.side(filled=True, deadline_s=DEADLINE_S)
    lab.hurt = True
    lab.place.kill()
    for _ in range(4):
        lab.save(side)
    assert side.client._transfers.guard.silent is not None
    return side


def test_a_save_to_a_dead_server_copies_nothing(lab: Lab) -> None:
    report = lab.save(open_breaker(lab))
    assert report.seconds.get("pack", 0.0) == 0.0


def test_a_dead_server_is_no_empty_one(lab: Lab) -> None:
    """A match that got no answer says so, and three of them open the breaker."""
    side = lab.side(siblings=False)
    lab.hurt = True
    lab.place.kill()
    for _ in range(3):
        found = side.client.match(lab.world.pages)
        assert (found.pages, found.exact) == (0, False)
    assert lab.kinds()["breaker_opened"] == 1
