"""What calls come to is counted and told: one meter and one event each, and never a secret."""

import threading
from typing import Any

from tests.client.world import POISON, World
from tests.io_path.lab import (
    CHUNKS,
    GRID,
    PAGES,
    SPEC,
    Lab,
    meter,
    reuse,
    settled,
    start,
    until,
)
from unikv.events import KINDS, Event
from unikv.meter_table import METERS
from unikv.testing_faults import Rule

SECRET = b"correct horse battery staple 012"


def test_a_whole_save_and_load_are_counted_once(lab: Lab) -> None:
    side = lab.side(lab.store(), filled=True)
    pages, slots = lab.world.pages, side.slots
    saved = side.client.save_async(pages, slots).result(20)
    assert side.client.match(pages).pages == 6
    loaded = side.client.load_async(pages, slots).result(20)
    assert side.client.prefetch(pages).result(20).pages == 6
    assert side.client.load(pages, slots).prefetched == 6
    assert meter(side, "unikv_saves_total", outcome="stored") == 1
    assert meter(side, "unikv_loads_total", outcome="whole") == 2
    assert meter(side, "unikv_matches_total", outcome="whole") == 1
    assert meter(side, "unikv_prefetches_total", outcome="whole") == 1
    assert meter(side, "unikv_pages_saved_total") == 6
    assert meter(side, "unikv_pages_loaded_total") == 12
    assert meter(side, "unikv_written_bytes_total") == saved.bytes_written
    assert meter(side, "unikv_read_bytes_total") == 2 * loaded.bytes_read
    assert meter(side, "unikv_pages_prefetched_total", outcome="fetched") == 6
    assert meter(side, "unikv_pages_prefetched_total", outcome="used") == 6
    for call in ("save", "load", "prefetch"):
        assert meter(side, "unikv_open_tickets", call=call) == 0
    assert meter(side, "unikv_io_orders_total", outcome="failed") == 0
    assert meter(side, "unikv_breaker_state") == 0
    assert set(lab.kinds()) <= {"io_process_started"}


def test_damage_and_healing_are_told(lab: Lab) -> None:
    lab.fill()
    rule = Rule("flip", verbs=("get",), keys=f"{lab.world.pages[1]}*", while_file=lab.gate())
    side = lab.side(lab.store(rule), filled=True)
    start(lab, side)
    lab.shut()
    assert side.client.load(lab.world.pages, side.slots).pages == 1
    lab.open()
    assert lab.kinds()["damaged"] == 1
    assert lab.kinds()["load_stopped"] == 1
    assert meter(side, "unikv_damaged_objects_total") == CHUNKS
    assert meter(side, "unikv_pages_missed_total", reason="damaged") == 5
    assert side.client.save(lab.world.pages, side.slots).stored == CHUNKS
    assert lab.kinds()["healed"] == 1
    assert meter(side, "unikv_healed_objects_total") == CHUNKS


def test_a_deadline_is_told_and_counted(lab: Lab) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=0.2)
    start(lab, side)
    lab.shut()
    assert side.client.load(lab.world.pages, side.slots).pages == 0
    kinds = lab.kinds()
    assert (kinds["timed_out"], kinds["load_stopped"], kinds["breaker_opened"]) == (1, 1, 1)
    told = next(event for event in lab.events if event.kind == "timed_out")
    assert told.fields["call"] == "get"
    assert 0 < float(told.fields["deadline_s"]) <= 0.2
    assert int(told.fields["quarantined_bytes"]) > 0
    assert meter(side, "unikv_loads_total", outcome="timed_out") == 1
    assert meter(side, "unikv_pages_missed_total", reason="timed_out") == 6
    assert meter(side, "unikv_io_stuck_threads") >= 1
    assert meter(side, "unikv_arena_quarantined_bytes") > 0
    lab.open()
    until(lambda: settled(side))
    until(lambda: side.client.load(lab.world.pages, side.slots).pages == 6)
    assert meter(side, "unikv_arena_quarantined_bytes") == 0
    assert meter(side, "unikv_io_stuck_threads") == 0
    assert lab.kinds()["breaker_closed"] == 1


def test_cancelled_calls_are_counted(lab: Lab) -> None:
    lab.fill()
    rule = Rule("hang", verbs=("get", "stat"), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), filled=True, deadline_s=20)
    start(lab, side)
    lab.shut()
    pages, slots = lab.world.pages, side.slots
    tickets: list[Any] = [
        side.client.load_async(pages[:2], slots[:2]),
        side.client.save_async(pages[2:4], slots[2:4]),
        side.client.prefetch(pages),
    ]
    until(lambda: lab.befallen() == 3)
    assert meter(side, "unikv_open_tickets") == 3
    for ticket in tickets:
        ticket.cancel()
    lab.open()
    until(lambda: meter(side, "unikv_open_tickets") == 0)
    for name in ("unikv_loads_total", "unikv_saves_total", "unikv_prefetches_total"):
        assert meter(side, name, outcome="cancelled") == 1
    until(lambda: settled(side))


def test_retries_are_counted(lab: Lab) -> None:
    lab.fill()
    rule = Rule("error", verbs=("get",), keys=PAGES, retryable=True, count=1)
    side = lab.side(lab.store(rule))
    assert side.client.load(lab.world.pages, side.slots).pages == 6
    assert meter(side, "unikv_io_retries_total", verb="get") == 1
    assert lab.world.holds(side, 6)


def test_a_save_that_fails_is_told_once(lab: Lab) -> None:
    side = lab.side(lab.store(Rule("full", keys=f"{lab.world.pages[2]}*")), filled=True)
    report = side.client.save(lab.world.pages, side.slots)
    assert len(report.failed) == CHUNKS
    told = [event for event in lab.events if event.kind == "save_failed"]
    assert [event.fields["objects"] for event in told] == [CHUNKS]
    assert meter(side, "unikv_saves_total", outcome="part") == 1
    assert meter(side, "unikv_pages_dropped_total", reason="error") == 1
    assert meter(side, "unikv_pages_saved_total") == 5


def test_no_secret_is_told(lab: Lab) -> None:
    """Neither the key of tags nor what a store's error holds of its URL."""
    world = World(
        SPEC, pages_count=6, options={**GRID, "layer_cuts": (0, 2, 4, 6), "tags": "blake3_keyed"}
    )
    rules = [
        Rule("error", verbs=("put",), keys=f"{world.pages[1]}*"),
        Rule("flip", verbs=("get",), keys=f"{world.pages[0]}*"),
    ]
    side = lab.side(lab.store(*rules), world=world, filled=True, tag_key=SECRET, deadline_s=5)
    assert len(side.client.save(world.pages, side.slots).failed) == CHUNKS
    report = side.client.load(world.pages, side.slots)
    assert report.pages == 0
    told = "".join(event.line() for event in lab.events) + repr(report) + repr(side.client)
    told += repr(side.client._lanes) + repr(vars(side.client))
    for form in (SECRET.hex(), SECRET.decode(), repr(SECRET)):
        assert form not in told
    assert lab.kinds()["save_failed"] == 1


def test_events_and_meters_are_of_the_closed_lists(lab: Lab) -> None:
    lab.fill()
    side = lab.side(lab.store(Rule("error", verbs=("get",), probability=0.5)), deadline_s=5)
    for _ in range(5):
        side.client.load(lab.world.pages, side.slots)
        reuse(side, POISON)
    assert set(lab.kinds()) <= set(KINDS)
    assert {sample.name for sample in side.client.meters.read()} <= set(METERS)


def test_a_callback_may_call_the_client(threads_lab: Lab) -> None:
    """An event is told with no lock held: a callback that asks the client does not hang."""
    lab = threads_lab
    lab.fill()
    asked: list[int] = []

    def ask(_: Event) -> None:
        asked.append(lab.sides[0].client.match(lab.world.pages).pages)

    rule = Rule("flip", verbs=("get",), keys=f"{lab.world.pages[1]}*")
    side = lab.side(lab.store(rule), on_event=ask)
    thread = threading.Thread(target=side.client.load, args=(lab.world.pages, side.slots))
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert asked


def test_a_match_that_got_no_answer_counts_as_failed(lab: Lab) -> None:
    lab.fill()
    rule = Rule("raise", verbs=("stat",), while_file=lab.gate())
    side = lab.side(lab.store(rule))
    start(lab, side)
    lab.shut()
    match = side.client.match(lab.world.pages)
    assert (match.pages, match.exact) == (0, False)
    assert meter(side, "unikv_matches_total", outcome="failed") == 1
    assert meter(side, "unikv_matches_total", outcome="none") == 0
