"""Gauges show what is so now, also where nobody calls: an exporter reads, and that is enough."""

from tests.io_path.lab import PAGES, Lab, meter, until
from unikv.testing_faults import Rule


def test_gauges_follow_io_that_ends_late_without_another_call(lab: Lab) -> None:
    lab.fill()
    rule = Rule("late", verbs=("get",), keys=PAGES, while_file=lab.gate())
    side = lab.side(lab.store(rule), deadline_s=20)
    side.client.match(lab.world.pages)  # its I/O process is started
    side.client._deadline_s = 0.5
    lab.shut()
    assert side.client.load(lab.world.pages, side.slots).pages == 0
    assert meter(side, "unikv_io_stuck_threads") == 1
    assert meter(side, "unikv_arena_quarantined_bytes") > 0
    lab.open()
    until(lambda: meter(side, "unikv_io_stuck_threads") == 0)
    assert meter(side, "unikv_arena_quarantined_bytes") == 0
    assert meter(side, "unikv_arena_used_bytes") == 0
