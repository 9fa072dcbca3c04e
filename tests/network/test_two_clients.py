"""Two clients on the same keys of one server at once: each object once, and no wrong byte."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.io_path.lab import settled
from tests.network.lab import CHUNKS, PAGES, Lab
from unikv.store import Item


@pytest.mark.parametrize("ios", [("threads", "threads"), ("threads", "process")])
def test_two_that_save_the_same_at_once_both_succeed(lab: Lab, ios: tuple[str, str]) -> None:
    sides = [lab.side(store=lab.open(), filled=True, io=io) for io in ios]
    for side in sides:
        side.client.match([])  # its I/O process is there
    tickets = [side.client.save_async(lab.world.pages, side.slots) for side in sides]
    reports = [ticket.result() for ticket in tickets]
    assert all(report.ok for report in reports), [report.failed[:1] for report in reports]
    every = PAGES * CHUNKS
    assert all(report.stored + report.existed == every for report in reports)
    stored = sum(report.stored for report in reports)
    assert stored == every if lab.place.once else every <= stored <= 2 * every
    assert all(settled(side) for side in sides)
    lab.check_stored(lab.keys())
    for side in sides:
        lab.poison(side)
        assert lab.load(side).pages == PAGES
        assert lab.world.holds(side, PAGES)
        side.client.close()


def test_one_loads_what_another_is_saving(lab: Lab) -> None:
    """Each load gets a prefix of what is stored so far, which only grows."""
    writer = lab.side(store=lab.open(), filled=True)
    reader = lab.side(store=lab.open())
    with ThreadPoolExecutor(1) as pool:
        save = pool.submit(lab.save, writer)
        longest = 0
        while not save.done():
            report = lab.load(reader)
            lab.check_load(reader, report)
            assert report.pages >= longest
            longest = report.pages
        assert save.result().ok
    assert lab.load(reader).pages == PAGES
    assert lab.world.holds(reader, PAGES)
    assert lab.kinds()["damaged"] == 0


def test_one_heals_what_another_damaged_while_both_load(lab: Lab) -> None:
    """A foreign object of the right size: both see it, one save replaces it, both go on."""
    lab.save_all()
    key = lab.keys()[5 * CHUNKS + 2]
    size = lab.store.stat([key])[0]
    assert size is not None
    assert lab.store.put([Item(key, [b"\x66" * size])], replace=True).ok
    sides = [lab.side(store=lab.open()) for _ in range(2)]
    for side in sides:
        report = lab.load(side)
        assert report.pages == 5
        assert report.failed[0].kind == "damaged"
        assert lab.world.holds(side, 5)
    lab.put(sides[0])
    healed = lab.save(sides[0])
    assert (healed.ok, healed.stored) == (True, 1)
    assert lab.load(sides[1]).pages == PAGES
    assert lab.world.holds(sides[1], PAGES)
