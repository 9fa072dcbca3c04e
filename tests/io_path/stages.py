"""Stages: the rules that stop a store at each stage of a save or load. It knows no client."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.io_path.lab import PAGES, Lab
from tests.io_path.staged import STAGES, stopped_here
from unikv.store import Store
from unikv.testing_faults import Rule

LOADS = {
    "hints": Rule("hang", verbs=("get",), keys="ns_*"),
    "get": Rule("hang", verbs=("get",), keys=PAGES),
    "late get": Rule("delay", verbs=("get",), keys=PAGES, seconds=30),
    "late garbage": Rule("late", keys=PAGES),
}
"""What stops a load; "late" ones write to the arena once they go on."""

SAVES = {
    "hints": Rule("hang", verbs=("get",), keys="ns_*"),
    "stat": Rule("hang", verbs=("stat",), keys=PAGES),
    "put": Rule("hang", verbs=("put",), keys=PAGES),
    "late put": Rule("delay", verbs=("put",), keys=PAGES, seconds=30),
}
"""What stops a save; a "late" one stores from the arena once it goes on."""

LOAD_STAGES = [*LOADS, "plan", "verify"]
SAVE_STAGES = [*SAVES, "encode"]


def cases(stages: Sequence[str], hows: Sequence[str]) -> list[Any]:
    """Return all ways in threads, and every stage but the first way alone in a process.

    What comes after the I/O is the same code, and a process takes its time to start.
    """
    threads = [("threads", stage, how) for stage in stages for how in hows]
    return [*threads, *(process(stage, hows[0]) for stage in stages)]


def process(stage: str, *values: str) -> Any:
    """Return a case in a process, slow but for the stages that write late."""
    marks = () if stage.startswith("late") else pytest.mark.slow
    return pytest.param("process", stage, *values, marks=marks)


def crashes(stages: Sequence[str]) -> list[Any]:
    """Return all stages, slow but for those that write late."""
    return [
        pytest.param(stage, marks=() if stage.startswith("late") else pytest.mark.slow)
        for stage in stages
    ]


def stopped_at(lab: Lab, stage: str, held: ExitStack) -> Store:
    """Return a store that stops at a stage as long as the lab's gate is shut, as it is now."""
    lab.shut()
    if stage in STAGES:
        if lab.io == "threads":
            held.enter_context(stopped_here(stage, lab.gate(), lab.told_file))
        return lab.staged(stage)
    return lab.store(replace((LOADS | SAVES)[stage], while_file=lab.gate()))
