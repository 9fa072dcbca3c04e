"""After: what a call waits for before it touches a pool. It knows no pool and no transfer."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from time import monotonic, sleep
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


def check_after(after: object) -> None:
    """Raise `PoolError` unless it can be waited for."""
    if after is not None and not isinstance(after, Queries | Synchronizes | Waits):
        raise PoolError(
            f"after={after!r:.80}: want an event with query(), wait(seconds) or synchronize(), "
            "or None"
        )


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
