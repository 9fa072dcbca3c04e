"""ClientOptions: the defaults of a client, and the checks of what is no tensor. They do nothing."""

from collections.abc import Sequence

from unikv.errors import PoolError, SpecError
from unikv.lane import Lane
from unikv.topology import Rank

STAGING_BYTES = 64 << 20
DEADLINE_S = 30.0
IO_THREADS = 8
MOST_THREADS = 256
MOST_SECONDS = 3600.0
MOVERS = 4
MOST_WAITING = 4096
"""Tickets that may wait for a mover; beyond that a save is dropped and a load misses."""


def check_options(
    store: object,
    rank: object,
    writers: object,
    staging_bytes: object,
    deadline_s: float,
    io_threads: object,
    on_event: object,
) -> None:
    """Raise `SpecError`, or `PoolError` for ``staging_bytes``, where an option cannot be right."""
    if writers not in ("striped", "first"):
        raise SpecError(f"writers={writers!r}: want 'striped' or 'first'")
    if isinstance(store, str):
        raise SpecError("store of type str: want a store, as open_store(url) returns it")
    if not isinstance(rank, Rank):
        raise SpecError(f"rank {rank!r:.80}: want a rank, such as Topology(tp=2).rank(tp=1)")
    if type(staging_bytes) is not int:
        raise PoolError(f"staging_bytes={staging_bytes!r:.80}: want a whole number of bytes")
    if type(deadline_s) not in (int, float) or not 0 < deadline_s <= MOST_SECONDS:
        raise SpecError(f"deadline_s={deadline_s!r:.80}: want seconds above 0, at most an hour")
    if type(io_threads) is not int or not 1 <= io_threads <= MOST_THREADS:
        raise SpecError(f"io_threads={io_threads!r:.80}: want 1 to {MOST_THREADS}")
    if on_event is not None and not callable(on_event):
        raise SpecError(f"on_event={on_event!r:.80}: want a function of one event, or None")


def least_staging(lanes: Sequence[Lane]) -> int:
    """Return the bytes that the smallest load takes: one page, and all of each window."""
    return sum(lane.read.page_bytes * lane.window_pages for lane in lanes)
