"""After: what a call waits for before it touches a pool. It knows no pool and no transfer."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from time import monotonic, sleep
from types import FunctionType
from typing import Protocol, TypeAlias, runtime_checkable

from unikv.errors import PoolError
from unikv.gate import Gate

FIRST_PAUSE_S = 0.0001
"""Pause behind the first look at an event."""

LATENESS = 0.125
"""Later pauses, as a part of the wait so far: so late is an event noticed, and no CPU is burnt."""

MOST_PAUSE_S = 0.01


@runtime_checkable
class Queries(Protocol):
    """An event that tells whether it has happened, as `torch.cuda.Event` recorded on a stream."""

    def query(self) -> object:
        """Return something true if it has happened, at once."""
        ...


@runtime_checkable
class Waits(Protocol):
    """An event that is waited for so many seconds, as `threading.Event`; True when it happened."""

    def wait(self, timeout: float) -> object:
        """Wait until it has happened; return something true if it has."""
        ...


@runtime_checkable
class Synchronizes(Protocol):
    """An event that can only block until it has happened: it knows no deadline."""

    def synchronize(self) -> object:
        """Wait until it has happened."""
        ...


After: TypeAlias = Queries | Synchronizes | Waits | None
"""What has to happen first: the last kernel that writes the pages, or that reads their slots.

One with `query` is asked now and then; else one with `synchronize` is left to block, since streams
give `wait` another meaning; else one with `wait` is waited for. Only of the second kind a call that
passes its deadline, or is cancelled, goes on until it has happened.
"""


_ASKED: dict[str, tuple[float, ...]] = {"query": (), "synchronize": (), "wait": (0.0,)}
"""What an event is asked by, with what arguments: the first that it has."""


def check_after(after: object) -> None:
    """Raise `PoolError` unless it can be waited for."""
    if after is None:
        return
    verb = next((verb for verb in _ASKED if hasattr(after, verb)), "")
    wrong: str | None = ""
    if isinstance(after, type):
        wrong = " is a class"
    elif callable(getattr(after, verb, None)):
        wrong = _trouble(type(after), verb)  # type: ignore[arg-type] # types can be hashed
    if wrong is not None:
        raise PoolError(
            f"after={after!r:.80}{wrong}: want an event with query(), wait(seconds) or "
            "synchronize(), or None"
        )


@lru_cache(maxsize=64)
def _trouble(kind: type, verb: str) -> str | None:
    """Return why events of a kind cannot be waited for so; None if they can, or do not tell.

    Asked once a kind: a look at a signature takes longer than all else that is checked.
    """
    if verb == "wait" and (hasattr(kind, "notify") or hasattr(kind, "parties")):
        return " is no event"  # who waits on a condition must hold it; on a barrier it counts
    method = inspect.getattr_static(kind, verb, None)
    if not isinstance(method, FunctionType):  # the one event's own, or in C
        return None
    if inspect.iscoroutinefunction(method):
        return f" has a {verb}() for an event loop"
    try:
        inspect.signature(method).bind(None, *_ASKED[verb])
    except TypeError:
        return f" takes no {verb}({'seconds' if _ASKED[verb] else ''})"
    return None


def wait_for(
    after: After,
    deadline: float,
    gate: Gate,
    asleep: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> bool:
    """Wait for an event, to the deadline where it can be; return whether it happened.

    ``asleep`` is entered around what waits.

    Raises:
        Shut: the gate was shut meanwhile.
    """
    if isinstance(after, Queries):
        if after.query():
            return True
        with asleep():
            return any(after.query() for _ in _looks(gate, deadline))
    if isinstance(after, Synchronizes):
        with asleep():
            after.synchronize()
        return True
    if after is None or after.wait(0):
        return True
    with asleep():
        return any(after.wait(some) for some in gate.slices(deadline))


def _looks(gate: Gate, deadline: float) -> Iterator[None]:
    """Yield now and then, the last time at the deadline."""
    begun = now = monotonic()
    while now < deadline:
        pause = min(max(FIRST_PAUSE_S, LATENESS * (now - begun)), MOST_PAUSE_S)
        sleep(min(pause, deadline - now))
        gate.check()
        yield
        now = monotonic()
