"""FaultyStore: a store whose calls go wrong by a plan, for tests. It knows no KV and no backend.

    plan = Plan([Rule("late", keys="3fa*", count=1), Rule("lost", probability=0.1)])
    store = faulty(open_store("file:///tmp/kv"), plan)

Nothing waits for ever: `FaultyStore.release` and `FaultyStore.close` end every wait. To steer a
store in another process, give its rules a ``while_file`` or ``once_file``, and read the plan's
``told_file`` with `told`.
"""

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TypeVar, cast

from unikv.backends.batch import Batch
from unikv.errors import StoreError
from unikv.store import Entry, Item, Opener, Outcome, Outcomes, Span, Store
from unikv.testing_fault_bytes import GARBAGE
from unikv.testing_fault_gets import get_with_faults
from unikv.testing_fault_picks import Done, FaultPicks, merge
from unikv.testing_fault_plan import Fault, Plan, Rule, Verb
from unikv.testing_fault_puts import put_with_faults

__all__ = ["GARBAGE", "Done", "FaultyStore", "Plan", "Rule", "faulty", "open_faulty", "told"]

EXIT_CODE = 13
"""What a process returns that ended by ``crash`` with ``how="exit"``."""

_One = TypeVar("_One")
_Answer = TypeVar("_Answer")


class FaultyStore:
    """A `unikv.store.Store` that hands calls on to another, except where its plan says otherwise.

    Args:
        store: what holds the objects.
        plan: what goes wrong.
        spares: the process that no ``crash`` ends: there it raises `RuntimeError`.
        clock: seconds, for rules between times.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        spares: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._plan = plan
        self._spares = spares
        self._picks = FaultPicks(plan, clock)

    def __repr__(self) -> str:
        return f"FaultyStore({self._store!r}, {len(self._plan.rules)} rules)"

    @property
    def counts(self) -> Counter[Fault]:
        """How often each fault was done."""
        return Counter(self._picks.counts)

    @property
    def done(self) -> list[Done]:
        """The latest faults that were done, in order."""
        return list(self._picks.done)

    @property
    def waiting(self) -> int:
        """How many calls wait in a delay, hang or late write."""
        return self._picks.waiting

    @property
    def released(self) -> Event:
        """Set by `release`; whoever sets it ends all waits as well."""
        return self._picks.released

    @property
    def opener(self) -> Opener:
        """How another process opens the same faulty store; none where the inner one has none."""
        opener: Opener = self._store.opener  # type: ignore[attr-defined]  # not all stores have it
        inner = [opener.module, opener.function, list(opener.arguments)]
        return Opener(__name__, "open_faulty", [self._plan.to_json(), inner, self._spares])

    def release(self) -> None:
        """End all waits, those to come as well; other faults go on."""
        self._picks.released.set()

    def heal(self) -> None:
        """End all waits and all faults."""
        self._picks.heal()

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store the items, or say so."""

        def do(some: Sequence[Item]) -> Outcomes:
            return put_with_faults(self._store, self._picks, some, replace=replace)

        return self._call("put", [item.key for item in items], items, do, _refuse)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Fill the views, or say so."""

        def do(some: Sequence[Span]) -> Outcomes:
            return get_with_faults(self._store, self._picks, some)

        return self._call("get", [span.key for span in spans], spans, do, _refuse)

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        """Return sizes, or nothing of those that are there."""
        return self._call("stat", keys, keys, self._stat, lambda some, _: [None] * len(some))

    def refresh(self, keys: Sequence[str]) -> None:
        """Tell the inner store, if it wants to know; this never fails."""
        refresh = getattr(self._store, "refresh", None)
        if refresh is not None:
            refresh(keys)

    def delete(self, keys: Sequence[str]) -> Outcomes:
        """Remove objects, or not."""
        return self._call("delete", keys, keys, self._delete, _refuse)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """List the objects, or fail."""

        def refuse(_: object, error: StoreError) -> Iterator[Entry]:
            raise error

        def do(_: object) -> Iterator[Entry]:
            for hit in self._picks.of_items("list", [prefix]).values():
                self._picks.tell("error", "list", prefix)
                raise hit.rule.failure(f"list {prefix!r:.200}")
            return self._store.list(prefix)

        return self._call("list", [prefix], [prefix], do, refuse)

    def close(self) -> None:
        """End waits, but those that survive it, and close the inner store."""
        self._picks.closed = True
        self._store.close()

    def _call(
        self,
        verb: Verb,
        keys: Sequence[str],
        batch: Sequence[_One],
        do: Callable[[Sequence[_One]], _Answer],
        refuse: Callable[[Sequence[_One], StoreError], _Answer],
    ) -> _Answer:
        """Do a call with what befalls it as a whole."""
        rules = [hit.rule for hit in self._picks.of_call(verb, keys)]
        for rule in rules:
            if rule.fault in ("delay", "hang"):
                self._picks.wait(rule)
                if rule.fault == "hang":
                    return refuse(batch, rule.failure(verb, errno.ETIMEDOUT))
            elif rule.when == "before":
                self._strike(rule)
        for rule in rules:
            if rule.when == "during":
                do(batch[: len(batch) // 2])
                self._strike(rule)
        answer = do(batch)
        for rule in rules:
            if rule.when == "after":
                self._strike(rule)
        return answer

    def _strike(self, rule: Rule) -> None:
        """Raise, or end the process."""
        if rule.fault == "crash":
            if os.getpid() == self._spares:
                raise RuntimeError(
                    "a crash befell the process that made the store: open its opener"
                )
            if rule.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(EXIT_CODE)
        if rule.retryable:
            raise rule.failure("call")
        raise RuntimeError("a planned exception")

    def _stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        hits = self._picks.of_items("stat", keys)
        sizes = list(self._store.stat(keys))
        for position, hit in hits.items():
            self._picks.tell(hit.rule.fault, "stat", keys[position])
            sizes[position] = None
        return sizes

    def _delete(self, keys: Sequence[str]) -> Outcomes:
        hits = self._picks.of_items("delete", keys)
        kept = [n for n in range(len(keys)) if n not in hits or hits[n].rule.when == "after"]
        answers = self._store.delete([keys[n] for n in kept])
        batch = Batch(len(keys))
        merge(batch, kept, answers)
        for position, hit in hits.items():
            self._picks.tell(hit.rule.fault, "delete", keys[position])
            batch.codes[position] = Outcome.MISS
            if hit.rule.fault == "error":
                batch.codes[position] = Outcome.FAILED
                batch.errors[position] = hit.rule.failure(f"delete {keys[position]!r:.200}")
        return batch.outcomes()


def faulty(
    store: Store,
    plan: Plan | Sequence[Rule],
    *,
    crash_here: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> FaultyStore:
    """Return ``store`` with faults.

    A ``crash`` ends any process but this one, where it raises `RuntimeError`; with ``crash_here``
    it ends this one, too.
    """
    plan = plan if isinstance(plan, Plan) else Plan(plan)
    return FaultyStore(store, plan, spares=0 if crash_here else os.getpid(), clock=clock)


def open_faulty(plan: str, inner: Sequence[object], spares: int) -> FaultyStore:
    """Open what `FaultyStore.opener` names, in another process."""
    module, function, arguments = inner
    open_inner = getattr(import_module(cast("str", module)), cast("str", function))
    store: Store = open_inner(*cast("Sequence[object]", arguments))
    return FaultyStore(store, Plan.from_json(plan), spares=spares)


def told(path: str | os.PathLike[str]) -> list[Done]:
    """Return the faults that stores of whatever process told a plan's ``told_file``."""
    try:
        lines = Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [Done(*cast("tuple[Fault, Verb, str]", line.split(" ", 2))) for line in lines]


def _refuse(batch: Sequence[object], error: StoreError) -> Outcomes:
    """Fail every item of a call."""
    errors = dict.fromkeys(range(len(batch)), error)
    return Outcomes([Outcome.FAILED] * len(batch), errors)
