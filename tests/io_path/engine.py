"""Engine: a process with a client that does as it is told on stdin. It is there to be killed.

python -m tests.io_path.engine ROOT IO STAGE: says a line of JSON for each order.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tests.client.world import POISON
from tests.io_path.lab import Lab, io_pid, reuse
from tests.io_path.stages import stopped_at


def say(**values: object) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(root: str, io: str, stage: str) -> None:
    """Carry out the orders, until stdin ends."""
    torch.set_num_threads(1)
    lab = Lab(Path(root), io)
    with ExitStack() as held:
        was_shut = Path(lab.gate()).exists()
        if stage == "open":
            store = lab.slow_to_open()
        else:
            store = lab.store() if stage == "none" else stopped_at(lab, stage, held)
        if not was_shut:
            lab.open()
        side = lab.side(store, filled=True, deadline_s=20)
        pages, slots = lab.world.pages, side.slots
        say(pid=io_pid(side) if io == "process" else 0)
        tickets: list[Any] = []
        for line in sys.stdin:
            match line.strip():
                case "save":
                    report: Any = side.client.save(pages, slots)
                    say(stored=report.stored, existed=report.existed, failed=len(report.failed))
                case "load":
                    reuse(side, POISON)
                    report = side.client.load(pages, slots)
                    say(pages=report.pages, holds=lab.world.holds(side, report.pages))
                case "begin save":
                    tickets.append(side.client.save_async(pages, slots))
                    say()
                case "begin load":
                    reuse(side, POISON)
                    tickets.append(side.client.load_async(pages, slots))
                    say()
                case "close":
                    side.client.close()
                    say()


if __name__ == "__main__":
    main(*sys.argv[1:])
