"""Moody: a store in memory that fails, hangs or forgets when a test says so, and counts calls."""

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Event
from typing import TypeVar

from unikv.backends.batch import Batch
from unikv.backends.memory import MemoryStore
from unikv.errors import StoreError
from unikv.store import Item, Outcomes, Span

_T = TypeVar("_T")


class Moody(MemoryStore):
    """Fails the calls named in ``broken``; waits in those of ``slow`` until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.untold: set[str] = set()  # keys whose size `stat` does not tell
        self.raising = False
        self.retryable = False
        self.slow: set[str] = set()
        self.gate = Event()
        self.reached = Event()
        self.calls: Counter[str] = Counter()
        self.items: Counter[str] = Counter()

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        return self._try("put", items, lambda: super(Moody, self).put(items, replace=replace))

    def get(self, spans: Sequence[Span]) -> Outcomes:
        return self._try("get", spans, lambda: super(Moody, self).get(spans))

    def delete(self, keys: Sequence[str]) -> Outcomes:
        return self._try("delete", keys, lambda: super(Moody, self).delete(keys))

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        self.calls["stat"] += 1
        self._wait("stat")
        if "stat" in self.broken:
            raise self._error("stat")
        sizes = super().stat(keys)
        return [None if key in self.untold else n for key, n in zip(keys, sizes, strict=True)]

    def lose(self, *keys: str) -> None:
        """Forget objects, as a bounded store does."""
        for key in keys:
            del self._objects[key]

    def held(self) -> dict[str, bytes]:
        return {key: data for key, (data, _) in self._objects.items()}

    def _try(self, verb: str, items: Sequence[_T], act: Callable[[], Outcomes]) -> Outcomes:
        self.calls[verb] += 1
        self.items[verb] += len(items)
        self._wait(verb)
        if verb not in self.broken:
            return act()
        if self.raising:
            raise self._error(verb)
        batch = Batch(len(items))
        for place in range(len(items)):
            batch.fail(place, verb, self._error("it"))
        return batch.outcomes()

    def _wait(self, verb: str) -> None:
        if verb in self.slow:
            self.reached.set()
            assert self.gate.wait(20)

    def _error(self, verb: str) -> StoreError:
        error = StoreError(f"{verb} is broken")
        error.retryable = self.retryable
        return error
