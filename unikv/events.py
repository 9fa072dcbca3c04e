"""Events: what an operator should hear of, as values for a callback. They know no cause.

Kinds and their fields are a closed list, `docs/metrics.md` shows it. No field ever holds a secret:
stores are named as their `repr` names them, and of what looks like a URL the credentials and
options are left out.
"""

import json
import logging
import re
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple, TypeAlias

from unikv.meters import Meters

Value: TypeAlias = str | int | float

LONGEST = 500
"""Characters of a text in a field; what is longer is cut."""

_CREDENTIALS = re.compile(r"(?<=://)\S*@")
_OPTIONS = re.compile(r"(?<=://)([^\s?#'\"]*)[?#][^\s'\"]*")


class EventKind(NamedTuple):
    """One kind of event: what happened, how bad that is, and the fields that say more."""

    level: int  # of the module `logging`
    help: str
    fields: tuple[str, ...]


KINDS: Mapping[str, EventKind] = {
    "breaker_opened": EventKind(
        logging.WARNING,
        "The store failed too often: calls miss at once until `retry_s` have passed",
        ("store", "reason", "retry_s"),
    ),
    "breaker_closed": EventKind(
        logging.INFO, "The store answers again after `open_s`", ("store", "open_s")
    ),
    "io_process_started": EventKind(logging.INFO, "An I/O process serves", ("pid", "restarts")),
    "io_process_died": EventKind(
        logging.ERROR,
        "It ended by itself; `tickets` in flight failed. A negative `exit_code` is a signal",
        ("pid", "exit_code", "tickets"),
    ),
    "timed_out": EventKind(
        logging.WARNING,
        "A call passed its deadline; `quarantined_bytes` of the arena wait for its I/O to end",
        ("call", "deadline_s", "quarantined_bytes"),
    ),
    "arena_full": EventKind(
        logging.WARNING,
        "A call found no room in the arena: a save dropped, a load missed",
        ("call", "wanted_bytes", "free_bytes", "quarantined_bytes"),
    ),
    "save_dropped": EventKind(logging.WARNING, "A save gave up `pages` pages", ("pages", "reason")),
    "save_failed": EventKind(
        logging.WARNING,
        "The store did not take `objects` of a save; `key` is the first",
        ("key", "objects", "reason"),
    ),
    "load_stopped": EventKind(
        logging.WARNING,
        "A load ended before its last page, and not for a missing object alone",
        ("pages", "wanted", "reason"),
    ),
    "damaged": EventKind(
        logging.ERROR,
        "A load found `objects` damaged and used none of their bytes; `key` is the first",
        ("key", "objects", "reason"),
    ),
    "healed": EventKind(logging.INFO, "A save replaced damaged `objects`", ("key", "objects")),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Raises:
        ValueError: a kind or field that is not declared, or a value of another type.
    """

    kind: str
    at: float  # seconds since the epoch
    fields: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise ValueError(f"event {self.kind!r:.80} is not declared: known are {sorted(KINDS)}")
        if sorted(self.fields) != sorted(kind.fields):
            raise ValueError(
                f"{self.kind}: fields {sorted(self.fields)}: want {sorted(kind.fields)}"
            )
        for name, value in self.fields.items():
            if type(value) not in (str, int, float):
                raise ValueError(
                    f"{self.kind}: {name} is a {type(value).__name__}: want str, int or float"
                )
        shown = {name: _shown(self.fields[name]) for name in kind.fields}
        object.__setattr__(self, "fields", shown)

    def line(self) -> str:
        """Return the event as one line of JSON."""
        fields = {
            name: str(value) if isinstance(value, float) and not isfinite(value) else value
            for name, value in self.fields.items()  # JSON has no infinity
        }
        return json.dumps({"event": self.kind, "at": round(self.at, 6), **fields})


OnEvent: TypeAlias = Callable[[Event], None]
"""Called on the thread where it happened, which waits: hand the event on and return."""


class Listener:
    """A callback, or none. Its client keeps it; who tells it does not, and thus keeps no client."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.on_event = on_event


class Teller:
    """Tells events to a callback, whose errors are counted and hurt nobody."""

    def __init__(self, listener: Listener, meters: Meters) -> None:
        self._listener = weakref.ref(listener)
        self._meters = meters

    def tell(self, kind: str, **fields: Value) -> None:
        """Hand one event to the callback, if there is one. Hold no lock meanwhile.

        Raises:
            ValueError: see `Event`.
        """
        listener = self._listener()
        if listener is None or listener.on_event is None:
            return
        event = Event(kind, time.time(), fields)
        try:
            listener.on_event(event)
        except Exception:  # noqa: BLE001 - whatever a callback raises must not stop a save or load
            self._meters.count("unikv_event_callback_failures_total")


def log_events(logger: logging.Logger) -> OnEvent:
    """Return a callback that logs each event as one line of JSON, at its kind's level."""

    def log(event: Event) -> None:
        logger.log(KINDS[event.kind].level, "%s", event.line())

    return log


def _shown(value: Value) -> Value:
    """Return a value fit to be seen: short, and without credentials."""
    if not isinstance(value, str):
        return value
    return _OPTIONS.sub(r"\1", _CREDENTIALS.sub("***@", value))[:LONGEST]
