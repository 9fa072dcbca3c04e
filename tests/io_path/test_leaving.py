"""A client that leaves its I/O process: the store that it had there is closed as a store is."""

from pathlib import Path

import pytest

from tests.io_path.lab import Lab, objects, until
from unikv import open_store
from unikv.backends.tiered import TieredStore
from unikv.testing_fault_plan import Plan, Rule
from unikv.testing_faults import faulty


@pytest.mark.parametrize("io", ["process", "host"])
def test_what_waits_to_be_written_back_is_written_before_the_process_ends(
    process_lab: Lab, io: str, tmp_path: Path
) -> None:
    lab = process_lab
    mode = "process" if io == "process" else f"host:{tmp_path / 'io.sock'}"
    slowly = Plan([Rule("delay", verbs=("put",), seconds=2.5)])
    slow_url = (tmp_path / "slow").as_uri()
    pair = TieredStore(lab.bare(), faulty(open_store(slow_url), slowly), mode="write-back")
    side = lab.side(pair, io=mode, filled=True, deadline_s=10)
    report = side.client.save(lab.world.pages, side.slots)
    assert report.ok
    side.client.close()
    slow = open_store(slow_url)
    until(lambda: objects(slow) == report.stored, 20)
