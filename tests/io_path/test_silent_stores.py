"""Field cases of stores that hang, fail or fall silent (B73, B74, B76), and of the breaker."""

import threading
import time
from typing import Any

import pytest

from tests.client.world import POISON, Side
from tests.io_path.lab import (
    Lab,
    arena_of,
    make_world,
    meter,
    patient,
    reuse,
    settled,
    start,
    unchanged,
    until,
    within,
)
from unikv import page_hashes
from unikv.testing_faults import Rule

SLACK_S = 0.3


@pytest.mark.parametrize("retryable", [False, True])
def test_B73_a_hit_that_always_fails_is_a_miss_the_next_time(lab: Lab, *, retryable: bool) -> None:
    """It is listed but no get of it works: whoever asks again recomputes."""
    lab.fill()
    bad = lab.world.pages[2]
    rule = Rule("error", verbs=("get",), keys=f"{bad}*", retryable=retryable)
    side = lab.side(lab.store(rule))
    assert side.client.match(lab.world.pages).pages == 6
    report = side.client.load(lab.world.pages, side.slots)
    assert report.pages == 2
    tries = lab.befallen()
    assert side.client.match(lab.world.pages).pages == 2
    assert lab.befallen() == tries <= 3 * 6  # objects of the page, each tried three times at most
    assert side.client.prefetch(lab.world.pages).result(10).pages <= 2
    others = make_world(6, numerics="others")
    lab.fill(others)
    other = lab.side(lab.bare(), world=others, io="threads")
    assert other.client.match(others.pages).pages == 6


def test_B73_a_page_that_failed_once_is_a_hit_again_when_it_works(
    threads_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = threads_lab
    lab.fill()
    rule = Rule("error", verbs=("get",), keys=f"{lab.world.pages[2]}*", while_file=lab.gate())
    lab.shut()
    side = lab.side(lab.store(rule))
    monkeypatch.setattr(side.client._transfers._failing, "_seconds", 0.1)
    assert side.client.load(lab.world.pages, side.slots).pages == 2
    lab.open()
    until(lambda: side.client.match(lab.world.pages).pages == 6, 2)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert side.client.match(lab.world.pages).pages == 6
    assert lab.world.holds(side, 6)


def calls_at_once(side: Side, pages: list[str], rows: list[int], seconds: float) -> list[Any]:
    """Load pages one by one, each on a thread of its own; return the reports by position."""
    reports: list[Any] = [None] * len(pages)

    def work(n: int) -> None:
        row = rows[n]
        reports[n] = side.client.load([pages[n]], side.slots[row : row + 1])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(pages))]
    with within(seconds):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return reports


def test_B74_calls_to_a_hung_key_time_out_and_all_others_finish(lab: Lab) -> None:
    world = make_world(40)
    lab.fill(world)
    hung = world.pages[0]
    rule = Rule("late", keys=f"{hung}*", while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, io_threads=48, deadline_s=5)
    start(lab, side)
    calls_at_once(side, world.pages[20:], list(range(20, 40)), 10)  # warm: a thread for each
    reuse(side, POISON)
    lab.shut()
    side.client._deadline_s = 0.5
    reports = calls_at_once(
        side, [hung] * 20 + world.pages[20:], list(range(40)), 0.5 + 2 * SLACK_S
    )
    assert all(report.pages == 0 for report in reports[:20])
    assert all("no answer" in report.stopped for report in reports[:20])
    assert [report.pages for report in reports[20:]] == [1] * 20
    arena = arena_of(side)
    assert arena.quarantined > 0
    reused = reuse(side)
    lab.open()
    until(lambda: settled(side))
    assert unchanged(side, reused)


def test_B74_with_few_threads_no_call_waits_longer_than_its_deadline(lab: Lab) -> None:
    world = make_world(40)
    lab.fill(world)
    hung = world.pages[0]
    rule = Rule("hang", verbs=("get",), keys=f"{hung}*", while_file=lab.gate())
    side = lab.side(lab.store(rule), world=world, io_threads=4)
    start(lab, side)
    lab.shut()
    side.client._deadline_s = 0.2
    calls_at_once(side, [hung] * 20 + world.pages[20:], list(range(40)), 0.2 + 2 * SLACK_S)
    assert meter(side, "unikv_io_stuck_threads") <= 4
    lab.open()
    until(lambda: settled(side))
    patient(side)
    until(lambda: side.client.load(world.pages, side.slots).pages == 40)
    assert world.holds(side, 40)


def test_B74_one_hung_key_among_few_threads_does_not_stop_the_others_for_ever(lab: Lab) -> None:
    """Scheduled again and again: the hung key eats one thread after the other."""
    lab.fill()
    hung = lab.world.pages[0]
    rule = Rule("hang", verbs=("get",), keys=f"{hung}*", while_file=lab.gate())
    side = lab.side(lab.store(rule), io_threads=3, deadline_s=0.2)
    start(lab, side)
    lab.shut()
    good = lab.world.pages[1:2]
    loaded = []
    for _ in range(6):
        if side.client.match([hung]).pages:  # as a scheduler asks first
            side.client.load([hung], side.slots[:1])
        loaded.append(side.client.load(good, side.slots[1:2]).pages)
    assert loaded == [1] * 6


def test_B76_lookups_of_a_paused_store_are_fast_misses_and_hits_again_after(lab: Lab) -> None:
    lab.fill()
    rules = [Rule("hang", verbs=(verb,), while_file=lab.gate()) for verb in ("get", "stat", "put")]
    side = lab.side(lab.store(*rules), deadline_s=0.3)
    start(lab, side)
    lab.shut()
    took: list[float] = []
    for _ in range(100):
        begun = time.monotonic()
        assert side.client.match(lab.world.pages).pages == 0
        took.append(time.monotonic() - begun)
    assert max(took) <= 0.3 + SLACK_S
    assert sum(one > 0.1 for one in took) <= 3  # the first, and who happens to look
    assert sorted(took)[50] < 0.01
    assert meter(side, "unikv_breaker_state") > 0
    assert lab.kinds()["breaker_opened"] == 1
    lab.open()
    patient(side)
    until(lambda: side.client.match(lab.world.pages).pages == 6, 7)
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert meter(side, "unikv_breaker_state") == 0
    assert lab.kinds()["breaker_closed"] == 1


def test_B76_a_hundred_lookups_at_once_of_a_paused_store(threads_lab: Lab) -> None:
    lab = threads_lab
    lab.fill()
    rules = [Rule("hang", verbs=(verb,), while_file=lab.gate()) for verb in ("get", "stat", "put")]
    side = lab.side(lab.store(*rules), deadline_s=0.3)
    start(lab, side)
    lab.shut()
    threads = [
        threading.Thread(target=side.client.match, args=(lab.world.pages,)) for _ in range(100)
    ]
    with within(0.3 + 3 * SLACK_S):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with within(0.1):
        assert side.client.match(lab.world.pages).pages == 0
    lab.open()
    patient(side)
    until(lambda: side.client.match(lab.world.pages).pages == 6, 7)


@pytest.mark.parametrize("call", ["save", "prefetch"])
def test_B76_saves_and_prefetches_of_a_paused_store_cost_one_deadline_in_all(
    lab: Lab, call: str
) -> None:
    lab.fill()
    rules = [Rule("hang", verbs=(verb,), while_file=lab.gate()) for verb in ("get", "stat", "put")]
    side = lab.side(lab.store(*rules), deadline_s=0.3, filled=True)
    start(lab, side)
    lab.shut()
    with within(0.3 + 4 * SLACK_S):
        for _ in range(10):
            if call == "save":
                assert len(side.client.save(lab.world.pages, side.slots).failed) == 6 * 6
            else:
                report = side.client.prefetch(lab.world.pages).result(5)
                assert report.pages == 0
    lab.open()
    until(lambda: settled(side))


def test_a_store_that_fails_every_call_is_left_alone_and_found_again(lab: Lab) -> None:
    """Failing at once, in a way that may pass, opens the breaker too."""
    lab.fill()
    rules = [
        Rule("raise", verbs=(verb,), retryable=True, while_file=lab.gate())
        for verb in ("get", "stat", "put")
    ]
    side = lab.side(lab.store(*rules), deadline_s=2)
    start(lab, side)
    lab.shut()
    for _ in range(20):
        assert side.client.load(lab.world.pages, side.slots).pages == 0
    calls = lab.befallen()
    assert calls < 20 * 3
    assert meter(side, "unikv_breaker_state") > 0
    lab.open()
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6, 7)


def test_a_missing_page_never_opens_the_breaker(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store())
    absent = page_hashes(range(9000, 9024), 4)
    for _ in range(10):
        assert side.client.load(absent, side.slots).pages == 0
    assert meter(side, "unikv_breaker_opens_total") == 0
    assert side.client.load(lab.world.pages, side.slots).pages == 6


def test_a_page_that_always_fails_never_opens_the_breaker_for_others(lab: Lab) -> None:
    """One bad object, which the store says may pass, is no word on the store."""
    lab.fill()
    bad = lab.world.pages[0]
    rule = Rule("error", verbs=("get",), keys=f"{bad}*", retryable=True)
    side = lab.side(lab.store(rule), deadline_s=5)
    start(lab, side)
    for _ in range(4):
        assert side.client.load([bad], side.slots[:1]).pages == 0
    with within(1):
        assert side.client.load(lab.world.pages[1:], side.slots[1:]).pages == 5
