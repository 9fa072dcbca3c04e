"""Soak: four processes save and load in two folders while stores fail and processes are killed.

    python -m tests.soak.soak --seconds 600

Folder A has no bound and few pages: what a save reported stored may never be missing there.
Folder B has a bound that it always exceeds. This process starts the workers, lets storms of faults
come and go, kills, looks at sizes, and prints what became of it; it exits with 1 if any promise was
broken, and says which.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import monotonic

from tests.soak.last import LastPass
from tests.soak.processes import TOKEN, Process, beneath, find, is_alive, kill
from tests.soak.side import RECOVERED_S
from tests.soak.table import Result, longest_of, render
from tests.soak.universe import A, B
from tests.soak.watch import WARM_S, Fill, Sizes
from tests.soak.worker import B_BYTES, DEADLINE_S
from unikv.testing_faults import told

ROOT = Path(__file__).parents[2]
WORKERS = 4
CALMS_S, STORM_S = (4.0, 4.0, 12.0), 4.0
KILL_IO_S, KILL_WORKER_S = 3.0, 10.0
TICK_S = 0.25
SILENT_S = 60.0
SLACK_S = 10.0
"""Seconds that a call may take beyond its deadline: an overloaded machine takes its time."""

RECOVERED = 0.25
"""Share of the loads that may fail then: I/O processes are killed in calm, too."""

GONE_S = 30.0
"""Seconds that what a killed process started may live on."""


@dataclass
class Running:
    """One worker in one of its lives."""

    number: int
    life: int
    process: "subprocess.Popen[bytes]"
    begun: float

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"worker {self.number}.{self.life}"


@dataclass
class Soak:
    """One soak in a folder of its own."""

    folder: Path
    seconds: float
    seed: int
    spoil: bool = False
    begun: float = field(default_factory=monotonic)
    workers: dict[int, Running] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    to_go: dict[Process, float] = field(default_factory=dict)
    storms: int = 0
    killed: tuple[str, float] = ("the start", 0.0)  # what was killed last, and when

    def __post_init__(self) -> None:
        self.fill = Fill(self.folder / "B", B_BYTES, B.paths())
        self.sizes = Sizes(min(WARM_S, self.seconds / 4))
        self._more = ["spoil"] if self.spoil else []

    def run(self) -> Result:
        """Run it; return what became of it."""
        for name in "AB":
            (self.folder / name).mkdir()
        (self.folder / "begun").write_text(repr(self.begun))
        self._calm()
        try:
            for number in range(WORKERS):
                self._start(number, 0)
            self._wait_for_workers()
            self._soak()
            self._end()
        finally:
            for running in self.workers.values():
                running.process.kill()
                running.process.wait()
            for process in find(str(self.folder)):
                self.broken.append(f"left behind: {process.role} {process.command:.80}")
                kill(process)
        worked = monotonic() - self.begun
        last = LastPass(self.folder, B_BYTES)
        last.run(A.paths()[: A.come(worked)], B.paths())
        self.broken += last.broken + self.fill.problems + self.sizes.problems()
        lives = [json.loads(path.read_text()) for path in self.folder.glob("told-*.[0-9]*")]
        for call, seconds in sorted(longest_of(lives).items()):
            if seconds > DEADLINE_S + SLACK_S:
                self.broken.append(f"{call} took {seconds:.1f} s, its deadline is {DEADLINE_S} s")
        self.broken += [problem for life in lives for problem in _not_recovered(life["counts"])]
        return Result(
            seconds=worked,
            last_seconds=monotonic() - self.begun - worked,
            seed=self.seed,
            told=lives,
            faults=Counter(f"{one.fault} {one.verb}" for one in told(self.folder / "told")),
            storms=self.storms,
            kills=self.kills,
            fill=self.fill,
            growth=self.sizes.growth(),
            most=self.sizes.most(),
            last=last.counts,
            broken=[*self._told_broken(), *self.broken],
        )

    def _wait_for_workers(self) -> None:
        """Wait until all are at work: a busy machine takes long to start them."""
        until = monotonic() + SILENT_S
        while monotonic() < until and not all(
            (self.folder / f"told-{number}.0").exists() for number in self.workers
        ):
            time.sleep(TICK_S)

    def _soak(self) -> None:
        calms, io_victims = cycle(CALMS_S), cycle(["io", "host", "evictor"])
        worker_victims = cycle([1, 3])  # 0 and 2 live to the end, and must not grow
        storm_at = monotonic() + next(calms)
        io_at, worker_at = monotonic() + 2 * KILL_IO_S, monotonic() + KILL_WORKER_S
        until, tick = monotonic() + self.seconds, 0
        while (now := monotonic()) < until:
            if now >= storm_at:
                stormy = (self.folder / "storm").exists()
                (self._calm if stormy else self._storm)()
                storm_at = now + (next(calms) if stormy else STORM_S)
            if now >= io_at:
                self._kill_io(next(io_victims))
                io_at = now + KILL_IO_S
            if now >= worker_at:
                self._kill_worker(self.workers[next(worker_victims)])
                worker_at = now + KILL_WORKER_S
            if tick % 4 == 0:
                self._look(at_prefixes=tick % 16 == 0)
            tick += 1
            time.sleep(max(0.0, now + TICK_S - monotonic()))

    def _storm(self) -> None:
        self.storms += 1
        (self.folder / "calm").unlink(missing_ok=True)
        (self.folder / "storm").touch()

    def _calm(self) -> None:
        (self.folder / "storm").unlink(missing_ok=True)
        new = self.folder / "calm.new"
        new.write_text(repr(monotonic()))
        new.rename(self.folder / "calm")

    def _start(self, number: int, life: int) -> None:
        arguments = [str(self.folder), str(self.seed), str(number), str(life), *self._more]
        with (self.folder / f"stderr-{number}.{life}").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.worker", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, TOKEN: str(self.folder), "OMP_NUM_THREADS": "1"},
            )
        self.workers[number] = Running(number, life, process, monotonic())

    def _kill_io(self, role: str) -> None:
        """Kill a process that does I/O, of another role where there is none of this.

        What worker 2 started is spared, and must not grow.
        """
        everyone = find(str(self.folder))
        spared = beneath(self.workers[2].process.pid, everyone)
        victims = [one for one in everyone if one.role != "worker" and one not in spared]
        for process in sorted(victims, key=lambda one: one.role != role):
            if kill(process):
                self.kills[process.role] += 1
                self.killed = f"the kill of {process.role}", monotonic()
                return

    def _kill_worker(self, running: Running) -> None:
        """Kill a worker; all that it started has to end by itself, and another takes its place."""
        started = beneath(running.process.pid, find(str(self.folder)))
        running.process.kill()
        running.process.wait()
        assert running.process.stdin is not None
        running.process.stdin.close()
        self.kills["worker"] += 1
        self.killed = f"the kill of {running.name}", monotonic()
        self.to_go.update(dict.fromkeys(started, monotonic() + GONE_S))
        self._start(running.number, running.life + 1)

    def _look(self, *, at_prefixes: bool) -> None:
        """Look whether all are well, and measure."""
        now = monotonic()
        for process, until in list(self.to_go.items()):
            if not is_alive(process):
                del self.to_go[process]
            elif now > until:
                del self.to_go[process]
                self.broken.append(f"{process.role} lived on {GONE_S} s after its worker")
        for running in list(self.workers.values()):
            if (code := running.process.poll()) is not None:
                self.broken.append(f"{running.name} ended with {code}: {self._errors(running)}")
                self._start(running.number, running.life + 1)
            elif now > self._heard_at(running) + SILENT_S:
                running.process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                self.broken.append(f"{running.name} is silent: {self._errors(running)}")
                self._kill_worker(running)
        what, at = self.killed
        self.fill.look(at_prefixes=at_prefixes, note=f"{monotonic() - at:.1f} s after {what}")
        pids = {running.name: running.process.pid for running in self.workers.values()}
        self.sizes.take(pids, find(str(self.folder)))

    def _heard_at(self, running: Running) -> float:
        """Return when a worker last told how far it is."""
        with suppress(FileNotFoundError):
            path = self.folder / f"told-{running.number}.{running.life}"
            return monotonic() - (time.time() - path.stat().st_mtime)
        return running.begun

    def _errors(self, running: Running) -> str:
        path = self.folder / f"stderr-{running.number}.{running.life}"
        return repr(path.read_text(errors="replace")[-1500:])

    def _end(self) -> None:
        """End all workers, and see that nothing is left of them."""
        self._calm()
        for running in self.workers.values():
            assert running.process.stdin is not None
            running.process.stdin.close()
        for running in self.workers.values():
            try:
                code = running.process.wait(2 * SILENT_S)
            except subprocess.TimeoutExpired:
                running.process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                self.broken.append(f"{running.name} does not end: {self._errors(running)}")
                continue
            if code:
                self.broken.append(f"{running.name} ended with {code}: {self._errors(running)}")
            elif errors := self._errors(running).strip("'\""):
                self.broken.append(f"{running.name} wrote to standard error: {errors}")
        until = monotonic() + GONE_S
        while find(str(self.folder)) and monotonic() < until:
            time.sleep(TICK_S)

    def _told_broken(self) -> list[str]:
        try:
            lines = (self.folder / "broken").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [f"worker {who}: {what}" for who, what in map(json.loads, lines)]


def _not_recovered(counts: dict[str, int]) -> list[str]:
    """Return what is wrong with the loads of one worker a good while behind a storm."""
    loads, errors = counts.get("recovered loads", 0), counts.get("recovered loads in error", 0)
    if loads < 20 or errors <= RECOVERED * loads:
        return []
    return [f"{errors} of {loads} loads failed though no fault befell for {RECOVERED_S} s"]


def main() -> int:
    """Run one soak; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long (600)")
    parser.add_argument("--seed", type=int, default=0, help="what all chances come from (0)")
    parser.add_argument("--folder", type=Path, help="where to make its folder (the temporary one)")
    parser.add_argument("--keep", action="store_true", help="keep its folder")
    spoil = "let puts into A be lost and torn, too: promises must be seen to break"
    parser.add_argument("--spoil", action="store_true", help=spoil)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=options.folder))
    try:
        result = Soak(folder, options.seconds, options.seed, options.spoil).run()
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    sys.stdout.write(render(result))
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
