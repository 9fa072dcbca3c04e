"""Pace: how many ranges one call of the library gets, so that no frozen owner holds it for long.

It moves the ranges of a call one after the other, and for each whose owner does not answer it waits
anew. So a call gets few while it is unknown whether the owners are well, and never very many.
"""

from collections.abc import Callable
from time import monotonic

from unikv.backends.mooncake_codes import TRANSFER_FAIL
from unikv.backends.mooncake_ranges import Columns
from unikv.errors import StoreError

FIRST_RANGES = 8
MOST_RANGES = 64
TRUST_S = 1.0
"""How long after a transfer that went well the owners are taken to be so."""

STALL_S = 0.5
"""A call that failed and took so long waited for an owner that does not answer."""


class Pace:
    """The pace of one client."""

    def __init__(self) -> None:
        self._trusted_until = 0.0

    def move(self, columns: Columns, call: Callable[[Columns], list[int]]) -> list[int]:
        """Move ranges in several calls; return the answers of all that were made.

        There are fewer than rows where an owner did not answer: none is made after that.
        """
        codes: list[int] = []
        widest = max(map(len, columns.sizes))
        ranges = MOST_RANGES if monotonic() < self._trusted_until else FIRST_RANGES
        while len(codes) < len(columns.keys):
            at = len(codes)
            begun = monotonic()
            part = columns.part(at, at + max(1, ranges // widest))
            codes += call(part)
            ended = monotonic()
            if len(codes) != at + len(part.keys):
                raise StoreError(f"the library answers {len(codes) - at} of {len(part.keys)} keys")
            if ended - begun > STALL_S and TRANSFER_FAIL in codes[at:]:
                self._trusted_until = 0.0
                return codes
            ranges = min(2 * ranges, MOST_RANGES)
        self._trusted_until = ended + TRUST_S
        return codes
