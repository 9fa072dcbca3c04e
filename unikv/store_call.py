"""StoreCall: a store within one call of a client, whose deadline all its orders share. No KV."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from unikv.arena import Slot
from unikv.errors import StoreError
from unikv.gate import Gate, Shut
from unikv.guard import Guard, Pending
from unikv.orders import Answer, Order, Peek, PeekDone, Post, PostDone, Stat, StatDone
from unikv.store import Item, Outcome, Outcomes, Span


@contextmanager
def closed_meanwhile() -> Iterator[None]:
    """Raise `StoreError` where a call that nobody can cancel finds its gate shut."""
    try:
        yield
    except Shut:
        raise StoreError("this client or catalog was closed while the call ran") from None


class StoreCall:
    """A store as one call of a client sees it: all that it asks for shares one deadline.

    Args:
        guard: the store.
        deadline: when the call is over, by `time.monotonic`.
        gate: shut when the call is cancelled.

    Attributes:
        trouble: the first error that an order failed by as a whole.
        fate: how that was.
        full: whether the arena had no room for the call.
    """

    def __init__(self, guard: Guard, deadline: float, gate: Gate | None = None) -> None:
        self.guard = guard
        self.deadline = deadline
        self.gate = gate or Gate()
        self.trouble: str | None = None
        self.fate: Literal["error", "timed_out", "breaker_open"] | None = None
        self.full = False

    @property
    def costly_stat(self) -> bool:
        """Whether the store asks over a network for each size; see `unikv.matching.gallop`."""
        return self.guard.costly_stat

    def begin(self, order: Order, slot: Slot | None = None) -> Pending:
        """Start an order."""
        return self.guard.begin(order, self.deadline, slot)

    def ask(self, order: Order) -> Answer:
        """Carry out an order that uses no slot."""
        return self.settle(self.begin(order))

    def settle(self, pending: Pending) -> Answer:
        """Wait for an order's answer; remember the first error of a whole one.

        Raises:
            Shut: the call was cancelled meanwhile.
        """
        try:
            answer = pending.result(self.gate)
            self.gate.check()  # it may have come as the call was cancelled
        except BaseException:  # cancelled, or the caller's thread was interrupted
            pending.abandon()
            raise
        if answer.error is not None and self.trouble is None:
            self.trouble, self.fate = answer.error, pending.fate
        return answer

    def stat(self, keys: Sequence[str], *, wanted: bool = False) -> Sequence[int | None]:
        """Return sizes; see `unikv.store.Records.stat`. Objects ``wanted`` count as requested."""
        answer = self.ask(Stat(keys, wanted)) if keys else StatDone()
        assert isinstance(answer, StatDone)
        return answer.sizes if answer.error is None else [None] * len(keys)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        """Read small records; see `unikv.store.Records.get`."""
        answer = self.ask(Peek([(key, start, stop) for key, start, stop, _ in spans]))
        assert isinstance(answer, PeekDone)
        if answer.error is not None:
            return _all_failed(len(spans), answer.error)
        for span, data in zip(spans, answer.data, strict=True):
            at = 0
            for view in span.into if data else ():
                view[:] = data[at : at + view.nbytes]
                at += view.nbytes
        return _outcomes(answer)

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        """Store small records; see `unikv.store.Records.put`."""
        answer = self.ask(Post(items, replace))
        assert isinstance(answer, PostDone)
        if answer.error is not None:
            return _all_failed(len(items), answer.error)
        return _outcomes(answer)


def _outcomes(answer: PeekDone | PostDone) -> Outcomes:
    errors = {n: StoreError(text) for n, text in answer.errors.items()}
    return Outcomes([Outcome(code) for code in answer.codes], errors)


def _all_failed(count: int, reason: str) -> Outcomes:
    return Outcomes([Outcome.FAILED] * count, {n: StoreError(reason) for n in range(count)})
