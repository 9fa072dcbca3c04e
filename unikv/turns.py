"""Turns: transfers of the same slots go one after the other, in the order of their calls. No I/O.

A save must not read slots that a load is still filling (it would store half of a page under the
whole page's hash), nor a load fill what a save still reads.
"""

from collections.abc import Sequence
from threading import Condition
from weakref import ref

import torch

from unikv.gate import Gate
from unikv.lane import Selection


class Turn:
    """One transfer's place in the order. Leave it when the pools are no longer touched."""

    def __init__(self, turns: "Turns", selections: Sequence[Selection], *, writes: bool) -> None:
        self._turns = turns
        self.selections = selections
        self.writes = writes

    def wait(self, deadline: float, gate: Gate) -> bool:
        """Wait for all that came before and touch the same slots; return whether they are done.

        Raises:
            Shut: the gate was shut meanwhile.
        """
        return self._turns.wait(self, deadline, gate)

    def free(self) -> bool:
        """Tell whether nobody that came before touches the same slots."""
        return not self._turns.before(self)

    def leave(self) -> None:
        """Let others go on. Twice is fine."""
        self._turns.leave(self)

    def meets(self, other: "Turn") -> bool:
        """Tell whether both touch a slot, and one of them writes it."""
        return (self.writes or other.writes) and any(
            bool(torch.isin(mine.places, theirs.places).any())
            for mine, theirs in zip(self.selections, other.selections, strict=True)
            if len(mine.places) and len(theirs.places)
        )


class Turns:
    """The transfers of one client that touch its pools.

    They are known by weak references: a call that an interrupt ended between any two of its steps
    leaves no turn behind, since nobody holds it any more.
    """

    def __init__(self) -> None:
        self._change = Condition()
        self._under_way: list[ref[Turn]] = []  # in the order of their calls

    def enter(self, selections: Sequence[Selection], *, writes: bool) -> Turn:
        """Take a place behind all that are under way; ``writes`` the pools, or reads them."""
        turn = Turn(self, selections, writes=writes)
        with self._change:
            self._under_way = [known for known in self._under_way if known() is not None]
            self._under_way.append(ref(turn))
        return turn

    def wait(self, turn: Turn, deadline: float, gate: Gate) -> bool:
        """Wait for those before a turn that meet it; see `Turn.wait`."""
        gate.check()
        met = self.before(turn)
        with self._change:
            return gate.wait(self._change, lambda: not any(map(self._goes_on, met)), deadline)

    def before(self, turn: Turn) -> list[ref[Turn]]:
        """Return those under way that came before a turn and meet it."""
        with self._change:
            known = list(self._under_way)
        met: list[ref[Turn]] = []
        for one in known:
            other = one()
            if other is turn:
                return met
            if other is not None and other.meets(turn):
                met.append(one)
        return []  # who was cancelled has left

    def leave(self, turn: Turn) -> None:
        """End a turn; see `Turn.leave`."""
        with self._change:
            self._under_way = [known for known in self._under_way if known() is not turn]
            self._change.notify_all()

    def _goes_on(self, known: ref[Turn]) -> bool:
        return known() is not None and known in self._under_way
