"""After: what a call waits for before it touches a pool. It knows no pool and no transfer."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias, runtime_checkable

from unikv.errors import PoolError
from unikv.gate import Gate


@runtime_checkable
class Synchronizes(Protocol):
    """An event that blocks until it has happened, as `torch.cuda.Event` recorded on a stream."""

    def synchronize(self) -> object:
        """Wait until it has happened."""
        ...


@runtime_checkable
class Waits(Protocol):
    """An event that is waited for so many seconds, as `threading.Event`; True when it happened."""

    def wait(self, timeout: float) -> object:
        """Wait until it has happened; return something true if it has."""
        ...


After: TypeAlias = Synchronizes | Waits | None
"""What has to happen first: the last kernel that writes the pages, or that reads their slots."""


def check_after(after: object) -> None:
    """Raise `PoolError` unless it can be waited for."""
    if after is not None and not isinstance(after, Synchronizes | Waits):
        raise PoolError(
            f"after={after!r:.80}: want an event with synchronize() or wait(seconds), or None"
        )


def wait_for(
    after: After,
    deadline: float,
    gate: Gate,
    asleep: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> bool:
    """Wait for an event, a `Waits` no longer than to the deadline; return whether it happened.

    ``asleep`` is entered around what waits.

    Raises:
        Shut: the gate was shut meanwhile.
    """
    if isinstance(after, Synchronizes):
        with asleep():
            after.synchronize()
        return True
    if after is None or after.wait(0):
        return True
    with asleep():
        return any(after.wait(some) for some in gate.slices(deadline))
