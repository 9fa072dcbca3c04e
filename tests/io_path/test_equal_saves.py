"""Equal saves in flight are done once, and none of them pays for what becomes of another."""

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.io_path.lab import (
    CHUNKS,
    PAGES,
    Lab,
    damages,
    meter,
    objects,
    settled,
    snapshot,
    start,
    unchanged,
    until,
    within,
)
from unikv.store import Item, Outcomes, Store
from unikv.testing_faults import Rule


class Counting:
    """Counts the objects that are put, by key."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.puts: Counter[str] = Counter()

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        self.puts.update(item.key for item in items if not item.key.startswith("ns_"))
        return self._store.put(items, replace=replace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def stored_right(lab: Lab) -> bool:
    """Tell whether all pages are stored and load."""
    reader = lab.side(lab.bare(), io="threads")
    report = reader.client.load(lab.world.pages, reader.slots)
    held = lab.world.holds(reader, 6)
    reader.client.close()
    return bool(report.pages == 6 and held and damages(lab.world, lab.bare()) == [])


@pytest.mark.parametrize("others", ["async", "sync"])
def test_equal_saves_put_each_object_once(threads_lab: Lab, others: str) -> None:
    lab = threads_lab
    rule = Rule("delay", verbs=("put",), keys=PAGES, seconds=30, while_file=lab.gate())
    store = Counting(lab.store(rule))
    side = lab.side(store, filled=True, deadline_s=20)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    first = side.client.save_async(pages, slots)
    until(lab.befallen)
    reports: list[Any] = []
    if others == "async":
        tickets = [side.client.save_async(pages, slots) for _ in range(3)]
    else:
        threads = [
            threading.Thread(target=lambda: reports.append(side.client.save(pages, slots)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
    assert not first.done()
    lab.open()
    assert first.result(10).stored == 6 * CHUNKS
    if others == "async":
        reports = [ticket.result(10) for ticket in tickets]
    else:
        for thread in threads:
            thread.join(10)
    assert [(r.stored, r.existed, r.ok) for r in reports] == [(0, 6 * CHUNKS, True)] * 3
    assert set(store.puts.values()) == {1}
    assert len(store.puts) == 6 * CHUNKS
    assert stored_right(lab)
    assert meter(side, "unikv_saves_total", outcome="stored") == 4


def test_saves_that_overlap_share_what_they_have_in_common(threads_lab: Lab) -> None:
    lab = threads_lab
    rule = Rule("delay", verbs=("put",), keys=PAGES, seconds=30, while_file=lab.gate(), count=1)
    store = Counting(lab.store(rule))
    side = lab.side(store, filled=True, deadline_s=20)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    first = side.client.save_async(pages[:4], slots[:4])
    until(lab.befallen)
    second = side.client.save_async(pages[2:], slots[2:], start=2)
    until(lambda: objects(lab.bare()) == 2 * CHUNKS)  # what the first one does not store
    assert not second.done()
    lab.open()
    assert first.result(10).stored == 4 * CHUNKS
    report = second.result(10)
    assert (report.stored, report.existed) == (2 * CHUNKS, 2 * CHUNKS)
    assert set(store.puts.values()) == {1}
    assert stored_right(lab)


@pytest.mark.parametrize("verb", ["stat", "put"])
@pytest.mark.parametrize("which", ["first", "second"])
def test_one_of_two_equal_saves_is_cancelled_and_the_other_still_stores_all(
    lab: Lab, verb: Any, which: str
) -> None:
    rule = Rule("delay", verbs=(verb,), keys=PAGES, seconds=30, while_file=lab.gate(), count=1)
    side = lab.side(lab.store(rule), filled=True, deadline_s=20)
    start(lab, side)
    # the rule befalls the first call alone: `start` asked before the gate was shut
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    first = side.client.save_async(pages, slots)
    until(lab.befallen)
    second = side.client.save_async(pages, slots)
    goner, other = (first, second) if which == "first" else (second, first)
    with within(0.3):
        goner.cancel()
    if which == "first":  # the other does it itself, though the first one's I/O goes on
        with within(3):
            assert other.result(10).ok
        assert objects(lab.bare()) == 6 * CHUNKS
    lab.open()
    assert other.result(10).ok
    with pytest.raises(CancelledError):
        goner.result(1)
    until(lambda: settled(side))
    assert stored_right(lab)


def test_a_save_whose_equal_failed_says_so_too(lab: Lab) -> None:
    rules = [
        Rule("delay", verbs=("put",), keys=PAGES, seconds=30, while_file=lab.gate()),
        Rule("full", keys=f"{lab.world.pages[1]}*", while_file=lab.gate("full")),
    ]
    side = lab.side(lab.store(*rules), filled=True, deadline_s=20)
    start(lab, side)
    lab.shut()
    lab.shut("full")
    pages, slots = lab.world.pages, side.slots
    first = side.client.save_async(pages, slots)
    until(lambda: lab.befallen("delay"))
    second = side.client.save_async(pages, slots)
    lab.open()
    reports = [ticket.result(10) for ticket in (first, second)]
    for report in reports:
        assert {failure.page for failure in report.failed} == {1}
        assert all("No space" in failure.reason for failure in report.failed)
    lab.open("full")
    assert side.client.save(pages, slots).stored == CHUNKS
    assert stored_right(lab)


def test_an_equal_save_waits_no_longer_than_its_own_deadline(lab: Lab) -> None:
    rule = Rule("hang", verbs=("put",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), filled=True, deadline_s=20)
    start(lab, side)
    before = snapshot(side)
    lab.shut()
    first = side.client.save_async(lab.world.pages, side.slots)
    until(lab.befallen)
    side.client._deadline_s = 0.3
    second = side.client.save_async(lab.world.pages, side.slots)
    with within(0.3 + 0.3):
        assert len(second.result(5).failed) == 6 * CHUNKS
    assert not first.done()
    assert unchanged(side, before)
    first.cancel()
    lab.open()
    until(lambda: settled(side))


def test_many_threads_save_and_cancel_equal_pages_at_once(threads_lab: Lab) -> None:
    """Whatever is cancelled when, in the end all is stored, and right."""
    lab = threads_lab
    rule = Rule("delay", verbs=("put", "stat"), keys=PAGES, seconds=0.005)
    side = lab.side(lab.store(rule), filled=True, deadline_s=20)
    start(lab, side)
    pages, slots = lab.world.pages, side.slots
    wrong: list[object] = []

    def work(seed: int) -> None:
        for n in range(8):
            ticket = side.client.save_async(pages, slots)
            if (seed + n) % 3:
                ticket.cancel()
                continue
            report = ticket.result(20)
            if not report.ok:
                wrong.append(report.failed[0])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert side.client.save(pages, slots).ok
    assert side.client._transfers._in_flight._owners == {}
    assert side.client._transfers.turns._under_way == []
    until(lambda: settled(side))
    assert stored_right(lab)
