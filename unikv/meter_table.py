"""MeterTable: every metric that unikv counts, declared once. It knows nobody who counts them.

The table is closed, names and label values alike: so many series there are, and never more.
`docs/metrics.md` shows it to operators; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Unit: TypeAlias = Literal["", "bytes", "seconds"]

BOUNDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds in seconds, inclusive, of the buckets of every histogram; one more is beyond."""


@dataclass(frozen=True, slots=True)
class Meter:
    """One metric: what it is called and what it says."""

    name: str
    kind: Kind
    help: str
    unit: Unit = ""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # and all their values


def _counter(name: str, text: str, unit: Unit = "", **labels: tuple[str, ...]) -> Meter:
    return Meter(name, "counter", text, unit, labels)


def _gauge(name: str, text: str, unit: Unit = "", **labels: tuple[str, ...]) -> Meter:
    return Meter(name, "gauge", text, unit, labels)


def _seconds(name: str, text: str, **labels: tuple[str, ...]) -> Meter:
    return Meter(name, "histogram", text, "seconds", labels)


_VERBS = ("put", "get", "stat")
_CALLS = ("save", "load", "prefetch")
_STAGES = ("stat", "pack", "encode", "put", "plan", "get", "verify", "wait", "unpack")
_ENDED = ("cancelled", "timed_out", "failed")
_READ = ("whole", "part", "none")

_DECLARED = (
    # Calls and pages
    _counter("unikv_loads_total", "Loads, by how much of them was loaded", outcome=_READ + _ENDED),
    _counter(
        "unikv_saves_total",
        "Saves; dropped: the arena was full",
        outcome=("stored", "part", "dropped", *_ENDED),
    ),
    _counter(
        "unikv_prefetches_total",
        "Prefetches, by how much of them was fetched; dropped: the arena was full",
        outcome=(*_READ, "dropped", *_ENDED),
    ),
    _counter(
        "unikv_matches_total",
        "Matches, by how much of the path is stored",
        outcome=(*_READ, "failed"),
    ),
    _counter("unikv_pages_loaded_total", "Pages that loads put into pools"),
    _counter(
        "unikv_pages_missed_total",
        "Pages that loads were asked for and did not load, by what ended the prefix",
        reason=("missing", "damaged", "error", "arena_full", "breaker_open", "timed_out"),
    ),
    _counter("unikv_pages_saved_total", "Pages that saves left whole in the store"),
    _counter(
        "unikv_pages_dropped_total",
        "Pages that saves were to write and did not, by reason",
        reason=("error", "arena_full", "breaker_open", "timed_out"),
    ),
    _counter(
        "unikv_pages_prefetched_total",
        "Pages that prefetches brought into the arena, and of these, pages that a load used",
        outcome=("fetched", "used"),
    ),
    # Bytes and objects
    _counter("unikv_read_bytes_total", "Bytes read from the store", "bytes"),
    _counter("unikv_needed_bytes_total", "Bytes of these that the rank's pools hold", "bytes"),
    _counter("unikv_written_bytes_total", "Bytes of the objects stored", "bytes"),
    _counter("unikv_damaged_objects_total", "Objects whose bytes were found damaged"),
    _counter("unikv_healed_objects_total", "Damaged objects that a save replaced"),
    # Input and output
    _counter(
        "unikv_io_orders_total",
        "Batches for the store; refused: not begun, the breaker was open or all threads were busy",
        verb=_VERBS,
        outcome=("ok", "failed", "timed_out", "refused"),
    ),
    _counter("unikv_io_retries_total", "Batches sent once more", verb=_VERBS),
    _seconds("unikv_io_order_seconds", "How long the store took for a batch", verb=_VERBS),
    _gauge(
        "unikv_io_stuck_threads", "I/O threads given up at a deadline whose batch has not ended"
    ),
    _counter("unikv_io_process_restarts_total", "I/O processes started in place of a dead one"),
    _gauge(
        "unikv_breaker_state",
        "0 closed; above 0 open: the store does not answer, calls miss at once",
    ),
    _counter("unikv_breaker_opens_total", "Times the breaker opened"),
    # Arena
    _gauge("unikv_arena_bytes", "Bytes of the arena", "bytes"),
    _gauge("unikv_arena_used_bytes", "Bytes of it in use, those in quarantine included", "bytes"),
    _gauge(
        "unikv_arena_quarantined_bytes",
        "Bytes of it that a call past its deadline may still write to",
        "bytes",
    ),
    _counter("unikv_arena_full_total", "Calls that found no room in the arena", call=_CALLS),
    # Times
    _seconds("unikv_stage_seconds", "How long one stage of a save or load took", stage=_STAGES),
    _seconds(
        "unikv_ticket_seconds", "From the call to the end of all its work", call=(*_CALLS, "match")
    ),
    _seconds("unikv_source_free_seconds", "From a save's call until its pool may change"),
    _gauge("unikv_open_tickets", "Calls that have not ended", call=_CALLS),
    _counter("unikv_event_callback_failures_total", "Event callbacks that raised"),
)

METERS: Mapping[str, Meter] = {meter.name: meter for meter in _DECLARED}
"""Every metric by its name."""
