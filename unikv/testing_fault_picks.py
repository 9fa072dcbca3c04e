"""FaultPicks: which rules of a plan befall which call, counted as they come. It calls no store."""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from threading import Event, Lock
from typing import NamedTuple

from unikv.backends.batch import Batch
from unikv.store import Outcomes
from unikv.testing_fault_plan import OF_CALLS, Fault, Plan, Rule, Verb

REMEMBERED = 10_000
"""Faults that a store remembers one by one, and lines that it tells a file."""

_LOOK_S = 0.01  # how often one who waits looks at its file


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that befalls a call or an item; ``draw`` gives its own random numbers."""

    rule: Rule
    draw: Random


class Done(NamedTuple):
    """A fault that was done."""

    fault: Fault
    verb: Verb
    key: str  # of a call: the first key that matched


class FaultPicks:
    """Counts what comes and picks what goes wrong. Safe from any thread.

    Args:
        plan: the rules.
        clock: for rules between times.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.counts: Counter[Fault] = Counter()
        self.done: deque[Done] = deque(maxlen=REMEMBERED)
        self.waiting = 0
        self.recent: deque[str] = deque(maxlen=64)  # keys that were stored or read, the newest last
        self.released = Event()
        self.closed = False
        self._plan = plan
        self._clock = clock
        self._opened = clock()
        self._healed = False
        self._seen = [0] * len(plan.rules)
        self._hits = [0] * len(plan.rules)
        self._told = 0
        self._lock = Lock()

    def heal(self) -> None:
        """Let no rule befall anything from now on."""
        self._healed = True
        self.released.set()

    def of_call(self, verb: Verb, keys: Sequence[str]) -> list[Hit]:
        """Return what befalls a whole call, in the order of the plan."""
        hits = []
        for number, rule in enumerate(self._plan.rules):
            if rule.fault not in OF_CALLS or verb not in rule.verbs:
                continue
            key = next((key for key in keys or [""] if fnmatchcase(key, rule.keys)), None)
            if key is not None and (hit := self._pick(number, rule)):
                self.tell(rule.fault, verb, key)
                hits.append(hit)
        return hits

    def of_items(self, verb: Verb, keys: Sequence[str]) -> Mapping[int, Hit]:
        """Return what befalls items of a call, by position: the first rule that matches each."""
        rules = [
            (number, rule)
            for number, rule in enumerate(self._plan.rules)
            if rule.fault not in OF_CALLS and verb in rule.verbs
        ]
        hits = {}
        for position, key in enumerate(keys):
            for number, rule in rules:
                if fnmatchcase(key, rule.keys) and (hit := self._pick(number, rule)):
                    hits[position] = hit
                    break
        return hits

    def tell(self, fault: Fault, verb: Verb, key: str) -> None:
        """Record a fault that is being done."""
        with self._lock:
            self.counts[fault] += 1
            self.done.append(Done(fault, verb, key))
            self._told += 1
            told = self._told
        if self._plan.told_file is not None and told <= REMEMBERED:
            line = f"{fault} {verb} {key}\n".encode()
            fd = os.open(self._plan.told_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def others(self, key: str) -> list[str]:
        """Return other keys that were there lately, the newest first."""
        return list(dict.fromkeys(other for other in [*self.recent][::-1] if other != key))

    def wait(self, rule: Rule) -> None:
        """Wait as long as a rule says, but not once released, closed or without its file."""
        until = None if rule.seconds is None else time.monotonic() + rule.seconds
        with self._lock:
            self.waiting += 1
        try:
            while not self._over(rule):
                left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
                if left <= 0 or self.released.wait(left):
                    break
        finally:
            with self._lock:
                self.waiting -= 1

    def _over(self, rule: Rule) -> bool:
        gone = rule.while_file is not None and not Path(rule.while_file).exists()
        return gone or (self.closed and not rule.survives_close)

    def _pick(self, number: int, rule: Rule) -> Hit | None:
        """Count a match; return the hit if it is one that is befallen."""
        if self._healed or not self._active(rule):
            return None
        with self._lock:
            self._seen[number] += 1
            seen = self._seen[number]
            if seen < rule.nth or (seen - rule.nth) % rule.every:
                return None
            if rule.count is not None and self._hits[number] >= rule.count:
                return None
            draw = Random(f"{self._plan.seed} {number} {seen}")  # noqa: S311 - no secret
            if draw.random() >= rule.probability or not _take(rule.once_file):
                return None
            self._hits[number] += 1
        return Hit(rule, draw)

    def _active(self, rule: Rule) -> bool:
        if rule.after_s or rule.until_s is not None:
            open_s = self._clock() - self._opened
            if open_s < rule.after_s or (rule.until_s is not None and open_s >= rule.until_s):
                return False
        return rule.while_file is None or Path(rule.while_file).exists()


def merge(batch: Batch, kept: Sequence[int], answers: Outcomes) -> None:
    """Enter what a store answered for the items at positions ``kept``; errors there stay."""
    for n, position in enumerate(kept):
        if position not in batch.errors:
            batch.codes[position] = answers.codes[n]
            if n in answers.errors:
                batch.errors[position] = answers.errors[n]


def _take(path: str | None) -> bool:
    """Remove the file of a rule that befalls once; tell whether it was this call that did."""
    if path is not None:
        with suppress(FileNotFoundError):
            Path(path).unlink()
            return True
        return False
    return True
