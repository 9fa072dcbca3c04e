"""Holes: what others delete or evict behind a client's back, and what a match makes of it."""

from collections.abc import Sequence

import pytest

from tests.io_path.lab import settled
from tests.network.lab import CHUNKS, PAGES, Lab
from unikv.store import Entry, Item, Opener, Outcomes, Span, Store

HOLE = 3  # far before the end: a galloping match does not look there
LATE = 15


class Vanishing:
    """A store of which somebody else deletes keys right after each look at them."""

    costly_stat = False

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self.store = store
        self.keys = keys
        self.looked = 0

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        sizes = self.store.stat(keys)
        if set(keys) & set(self.keys):
            self.looked += 1
            self.store.delete(self.keys)
        return sizes

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        return self.store.put(items, replace=replace)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return self.store.get(spans)

    def delete(self, keys: Sequence[str]) -> Outcomes:
        return self.store.delete(keys)

    def list(self, prefix: str = "") -> "Sequence[Entry]":
        return list(self.store.list(prefix))

    def close(self) -> None:
        """Leave the store open: it is the lab's."""

    @property
    def opener(self) -> Opener:
        raise AttributeError


@pytest.mark.parametrize("io", ["threads", "process"])
def test_half_a_page_evicted_ends_the_prefix_and_a_save_fills_that_hole_alone(
    lab: Lab, io: str
) -> None:
    lab.save_all()
    gone = lab.keys()[HOLE * CHUNKS + 1 : HOLE * CHUNKS + 3]
    assert lab.store.delete(gone).ok
    side = lab.side(io=io)
    found = side.client.match(lab.world.pages)
    if lab.place.exact:
        assert (found.pages, found.exact, found.first_missing) == (HOLE, True, gone[0])
    else:
        assert (found.pages, found.exact) == (PAGES, False)  # too long, and says it may be
    report = side.client.load(lab.world.pages[: found.pages], side.slots[: found.pages])
    assert report.pages == HOLE
    assert lab.world.holds(side, HOLE)
    lab.put(side)
    saved = side.client.save(lab.world.pages, side.slots)
    assert saved.ok
    assert saved.stored == len(gone)
    assert saved.existed == PAGES * CHUNKS - len(gone)
    lab.poison(side)
    assert side.client.load(lab.world.pages, side.slots).pages == PAGES
    assert lab.world.holds(side, PAGES)
    assert lab.kinds()["damaged"] == 0


@pytest.mark.parametrize("hole", [0, 12, PAGES - 1])
def test_a_page_that_vanishes_between_match_and_load_ends_the_load(lab: Lab, hole: int) -> None:
    lab.save_all()
    side = lab.side()
    assert side.client.match(lab.world.pages).pages == PAGES
    assert lab.store.delete(lab.keys()[hole * CHUNKS : (hole + 1) * CHUNKS]).ok
    report = side.client.load(lab.world.pages, side.slots)
    assert report.pages == hole
    assert [failure.kind for failure in report.failed[:1]] == ["missing"]
    assert lab.world.holds(side, hole)
    assert settled(side)


def test_what_vanishes_behind_a_saves_look_is_stored_by_the_next(lab: Lab) -> None:
    lab.save_all()
    gone = lab.keys()[HOLE * CHUNKS : (HOLE + 2) * CHUNKS]
    vanishing = Vanishing(lab.store, gone)
    side = lab.side(store=vanishing, filled=True)  # type: ignore[arg-type] # a list iterates, too
    first = side.client.save(lab.world.pages, side.slots)
    assert (first.stored, first.existed, vanishing.looked) == (0, PAGES * CHUNKS, 1)
    vanishing.keys = ()
    second = side.client.save(lab.world.pages, side.slots)
    assert (second.stored, second.ok) == (len(gone), True)
    lab.check_stored(lab.keys())


def test_what_vanishes_while_a_load_runs_ends_it_with_right_pages(lab: Lab) -> None:
    lab.save_all()
    side = lab.side()
    gone = lab.keys()[CHUNKS * LATE :]
    struck = lab.strike(side, "load", lambda: lab.store.delete(gone), 1)
    lab.hurt = False
    lab.check_load(side, struck.report)
    assert struck.report.pages >= 3  # of the first order
    assert {failure.kind for failure in struck.report.failed} <= {"missing", "error"}
    again = lab.side()
    assert lab.load(again).pages == LATE
    assert lab.world.holds(again, LATE)
