"""ClientOptions: the defaults of a client, and the checks of what is no tensor. They do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from unikv.arguments import is_switch, real_number, whole_number
from unikv.errors import PoolError, SpecError, TopologyError
from unikv.tags import BLAKE3_KEYED
from unikv.topology import Rank

if TYPE_CHECKING:
    from unikv.lane import Lane

STAGING_BYTES = 64 << 20
DEADLINE_S = 30.0
IO_THREADS = 8
MOST_THREADS = 256
MOST_SECONDS = 3600.0
MOVERS = 4
MOST_WAITING = 4096
"""Tickets that may wait for a mover; beyond that a save is dropped and a load misses."""

MAX_PAGE_INDEX = 2**32 - 1
"""Pages before the end of the longest sequence that a header can count."""

_CALLS = ("put", "get", "stat", "delete", "list", "close")  # of a `Store`


def check_options(store: object, rank: object, writers: object, on_event: object) -> None:
    """Raise `SpecError` where an option cannot be right."""
    check_store(store)
    if not isinstance(rank, Rank):
        raise SpecError(f"rank {rank!r:.80}: want a rank, such as Topology(tp=2).rank(tp=1)")
    if not isinstance(writers, str) or writers not in ("striped", "first"):
        raise SpecError(f"writers={writers!r:.80}: want 'striped' or 'first'")
    if on_event is not None and not callable(on_event):
        raise SpecError(f"on_event={on_event!r:.80}: want a function of one event, or None")


def check_switches(**switches: object) -> None:
    """Raise `SpecError` unless each option says on or off: None would be off unseen."""
    for name, value in switches.items():
        if not is_switch(value):
            raise SpecError(f"{name}={value!r:.80}: want True or False")


def check_staging(staging_bytes: object) -> int:
    """Return the bytes of the arena; raise `PoolError` where they are no number."""
    found = whole_number(staging_bytes)
    if found is None:
        raise PoolError(f"staging_bytes={staging_bytes!r:.80}: want a whole number of bytes")
    return found


def check_threads(io_threads: object) -> int:
    """Return how many calls of the store there may be at once; raise `SpecError` for no number."""
    found = whole_number(io_threads)
    if found is None or not 1 <= found <= MOST_THREADS:
        raise SpecError(f"io_threads={io_threads!r:.80}: want a number from 1 to {MOST_THREADS}")
    return found


def check_store(store: object) -> None:
    """Raise `SpecError` unless a store can be asked; what it answers is seen later."""
    missing = [name for name in _CALLS if not callable(getattr(store, name, None))]
    if missing or isinstance(store, type):
        lacks = f" that has no {missing[0]}()" if missing else ""
        raise SpecError(
            f"store of type {type(store).__name__}{lacks}: want a store, as open_store(url) "
            "returns it"
        )


def check_deadline(deadline_s: object) -> float:
    """Return the seconds that a call may take; raise `SpecError` where they are none."""
    seconds = real_number(deadline_s)
    if seconds is None or not 0 < seconds <= MOST_SECONDS:
        raise SpecError(f"deadline_s={deadline_s!r:.80}: want seconds above 0, at most an hour")
    return seconds


def check_tag_key(tag_key: object, lanes: Sequence[Lane]) -> None:
    """Raise `SpecError` for a key that no component would use."""
    keyed = any(lane.format.namespace.tags == BLAKE3_KEYED for lane in lanes)
    if tag_key is not None and not keyed:
        raise SpecError(
            f"a tag_key was given, but no namespace has tags={BLAKE3_KEYED!r}: nothing would be "
            "keyed"
        )


def check_ranks(ranks: object) -> list[Rank] | None:
    """Return the ranks that a catalog asks for, None for all.

    Raises:
        TopologyError: none at all, or what is no rank.
    """
    if ranks is None:
        return None
    given = list(ranks) if isinstance(ranks, Iterable) else []
    listed = [rank for rank in given if isinstance(rank, Rank)]
    if not listed or len(listed) < len(given):
        raise TopologyError(
            f"ranks={ranks!r:.80}: want the ranks to ask for, such as Topology(tp=2).ranks(), or "
            "None for all"
        )
    return listed


def check_start(start: object, pages: int) -> int:
    """Return the position of a call's first page; raise `PoolError` where it can be none."""
    found = whole_number(start)
    if found is None or not 0 <= found <= MAX_PAGE_INDEX - pages:
        raise PoolError(
            f"start={start!r:.40}: want the position of the first page, a whole number from 0 "
            f"to {MAX_PAGE_INDEX - pages}"
        )
    return found


def check_endpoints(endpoints: object) -> list[int] | None:
    """Return the endpoints of a save, None for all; whether the pages reach them is seen later.

    Raises:
        SpecError: what is no list of whole numbers.
    """
    if endpoints is None:
        return None
    try:
        given = iter(endpoints)  # type: ignore[call-overload] # what is none is refused below
    except TypeError:
        given = None
    if given is None or isinstance(endpoints, str | bytes | bytearray | Mapping):
        raise SpecError(
            f"endpoints={endpoints!r:.80}: want page counts at which the sequence shall be "
            "restorable, such as [4], or None for all"
        )
    listed = list(given)
    if not set(map(type, listed)) <= {int}:
        for place, value in enumerate(listed):
            if (number := whole_number(value)) is None:
                raise SpecError(f"endpoint {value!r:.80}: want a whole number, 0 to all pages")
            listed[place] = number
    return listed


def least_staging(lanes: Sequence[Lane]) -> int:
    """Return the bytes that the smallest load takes: one page, and all of each window."""
    return sum(lane.read.page_bytes * lane.window_pages for lane in lanes)
