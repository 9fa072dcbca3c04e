"""InFlight: which pages saves are storing just now, so that equal ones are stored once. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Condition
from weakref import WeakValueDictionary, ref

from unikv.gate import Gate

CANCELLED = "the save was cancelled"
LATE = "the equal save that was in flight did not end in time"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Claim:
    """The pages that one save stores, by component and page hash."""

    names: list[str] = field(default_factory=list)
    done: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)  # once done: name and reason


class InFlight:
    """Each page belongs to the save that claimed it first, until that save has ended.

    Claims are known by weak references: one whose save an interrupt ended between any two of its
    steps goes with it.
    """

    def __init__(self) -> None:
        self._change = Condition()
        self._owners: WeakValueDictionary[str, Claim] = WeakValueDictionary()

    def claim(self, claim: Claim, names: Sequence[str]) -> dict[str, ref[Claim]]:
        """Add pages to a claim; return those that another one has, with it."""
        others: dict[str, ref[Claim]] = {}
        with self._change:
            for name in names:
                owner = self._owners.setdefault(name, claim)
                if owner is claim:
                    claim.names.append(name)
                else:
                    others[name] = ref(owner)
        return others

    def end(self, claim: Claim, failed: Mapping[str, str]) -> None:
        """End a save: its pages are stored, but for those that ``failed``."""
        with self._change:
            claim.failed, claim.done = failed, True
            for name in claim.names:
                self._owners.pop(name, None)
            self._change.notify_all()

    def wait(self, others: Mapping[str, ref[Claim]], deadline: float, gate: Gate) -> dict[str, str]:
        """Wait until other saves have ended; return those of their pages not stored, and why.

        Raises:
            Shut: the gate was shut meanwhile.
        """
        claims = {id(claim): claim for claim in others.values()}.values()  # a dead one has no hash
        with self._change:
            gate.wait(self._change, lambda: not any(map(_goes_on, claims)), deadline)
            why = {name: _failed(claim(), name) for name, claim in others.items()}
        return {name: reason for name, reason in why.items() if reason is not None}


def _goes_on(known: ref[Claim]) -> bool:
    claim = known()
    return claim is not None and not claim.done


def _failed(claim: Claim | None, name: str) -> str | None:
    if claim is None:
        return CANCELLED
    return claim.failed.get(name) if claim.done else LATE
