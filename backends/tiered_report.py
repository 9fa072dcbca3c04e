"""TierReport: what two tiers did to each other, and what failed. It does nothing itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from unikv.errors import StoreError

NAMED = 10_000
"""Keys that are remembered with why they are in the fast tier only; the rest is counted."""


@dataclass(frozen=True, slots=True)
class TierReport:
    """Counts since the store was opened, and what is open now."""

    mode: str
    waiting: int
    """Objects that wait to be written to the slow tier."""
    written: int
    """Objects that were written there, or found there, after they had waited."""
    unwritten: Mapping[str, str]
    """Objects that are in the fast tier only, and why; `flush` tries them again."""
    unwritten_unnamed: int
    """More of them, whose keys are forgotten until a `settle` has found all that there are."""
    lost: int
    """Objects that left the fast tier before they were written to the slow one."""
    fast_errors: int
    """Items that the fast tier failed, in calls that the slow one then answered."""
    fast_error: str
    """The last of these errors."""
    fast_resting: bool
    """Whether reads leave the fast tier alone for a while, since it failed so often."""
    stale: int
    """Objects whose older version the fast tier may still hold; they are read from the slow one."""
    promoted: int
    """Objects that were copied to the fast tier after a load."""
    promotions_waiting: int
    promotions_dropped: int
    """Objects that were not copied, because too many waited or they are too large."""
    promotion_errors: int
    promotion_error: str
    """The last of these errors."""


@dataclass(slots=True)
class Tally:
    """The counts of a `TierReport` while they grow."""

    written: int = 0
    lost: int = 0
    fast_errors: int = 0
    fast_error: str = ""
    promoted: int = 0
    promotions_dropped: int = 0
    promotion_errors: int = 0
    promotion_error: str = ""
    unwritten: dict[str, str] = field(default_factory=dict)
    unwritten_unnamed: int = 0
    lock: Lock = field(default_factory=Lock)

    def fast_failed(self, errors: Iterable[StoreError]) -> None:
        """Count errors of the fast tier."""
        with self.lock:
            for error in errors:
                self.fast_errors += 1
                self.fast_error = str(error)

    def wrote(self, key: str) -> None:
        """Count an object that is in the slow tier now."""
        with self.lock:
            self.written += 1
            self.unwritten.pop(key, None)

    def left_fast(self, key: str) -> None:
        """Count an object that was to be written to the slow tier and is nowhere any more."""
        with self.lock:
            self.lost += 1
            self.unwritten.pop(key, None)

    def left_unwritten(self, key: str, why: str) -> None:
        """Note an object that is in the fast tier only."""
        with self.lock:
            if key in self.unwritten or len(self.unwritten) < NAMED:
                self.unwritten[key] = why
            else:
                self.unwritten_unnamed += 1

    def settled(self, unnamed: int) -> None:
        """Count no more the ``unnamed`` objects that were so before all were looked for."""
        with self.lock:
            self.unwritten_unnamed -= unnamed

    def forget(self, keys: Iterable[str]) -> None:
        """Note that objects need not be written any more: removed, or found in the slow tier."""
        with self.lock:
            for key in keys:
                self.unwritten.pop(key, None)
