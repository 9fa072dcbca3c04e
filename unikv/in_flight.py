"""InFlight: which pages saves are storing just now, so that equal ones are stored once. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition

from unikv.gate import Gate

LATE = "the equal save that was in flight did not end in time"


@dataclass(slots=True, eq=False)
class Claim:
    """The pages that one save stores, by component and page hash."""

    names: list[str] = field(default_factory=list)
    joined: bool = False  # whether another save waits for them
    done: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)  # once done: name and reason


class InFlight:
    """Each page belongs to the save that claimed it first, until that save has ended."""

    def __init__(self) -> None:
        self._change = Condition()
        self._owners: dict[str, Claim] = {}

    def claim(self, claim: Claim, names: Sequence[str]) -> dict[str, Claim]:
        """Add pages to a claim; return those that another one has, with it."""
        others: dict[str, Claim] = {}
        with self._change:
            for name in names:
                owner = self._owners.setdefault(name, claim)
                if owner is claim:
                    claim.names.append(name)
                else:
                    owner.joined = True
                    others[name] = owner
        return others

    def end(self, claim: Claim, failed: Mapping[str, str]) -> None:
        """End a save: its pages are stored, but for those that ``failed``."""
        with self._change:
            claim.failed, claim.done = failed, True
            for name in claim.names:
                self._owners.pop(name, None)
            self._change.notify_all()

    def wait(self, others: Mapping[str, Claim], deadline: float, gate: Gate) -> dict[str, str]:
        """Wait until other saves have ended; return those of their pages not stored, and why.

        Raises:
            Shut: the gate was shut meanwhile.
        """
        with self._change:
            ended = lambda: all(claim.done for claim in others.values())  # noqa: E731 - a condition
            gate.wait(self._change, ended, deadline)
            why = {
                name: claim.failed.get(name) if claim.done else LATE
                for name, claim in others.items()
            }
        return {name: reason for name, reason in why.items() if reason is not None}
