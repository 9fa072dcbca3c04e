"""Accounts: what became of a client's calls, as meters and events. They know no store, no pool."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Literal, TypeAlias

from unikv.events import Teller
from unikv.gate import Shut
from unikv.meters import Meters
from unikv.reports import LoadReport, Match, PrefetchReport, SaveReport

Call: TypeAlias = Literal["save", "load", "prefetch", "match"]

Fate: TypeAlias = Literal["error", "timed_out", "breaker_open"]
"""How an order failed as a whole."""


class Accounts:
    """Keeps the books of one client."""

    def __init__(self, meters: Meters, teller: Teller) -> None:
        self._meters = meters
        self._teller = teller
        self._open = dict.fromkeys(("save", "load", "prefetch"), 0)

    @contextmanager
    def call(self, name: Call) -> Iterator[None]:
        """Count a call as open, and how long it takes, however it ends."""
        begun = monotonic()
        self._count_open(name, 1)
        try:
            yield
        except Shut:
            self._end(name, "cancelled")
            raise
        except BaseException:
            self._end(name, "failed")
            raise
        finally:
            self._count_open(name, -1)
            self._meters.observe("unikv_ticket_seconds", monotonic() - begun, call=name)

    def matched(self, match: Match, wanted: int, trouble: str | None) -> None:
        """Count a match of ``wanted`` pages, and the ``trouble`` of the store that cut it short."""
        failed = trouble is not None and match.pages < wanted
        outcome = "failed" if failed else _share(match.pages, wanted)
        self._meters.count("unikv_matches_total", outcome=outcome)

    def source_free(self, seconds: float) -> None:
        """Count how long a save kept its pool."""
        self._meters.observe("unikv_source_free_seconds", seconds)

    def saved(self, report: SaveReport, fate: Fate | None, *, full: bool) -> None:
        """Count a save; ``fate`` of its orders, ``full`` if the arena was."""
        count = self._meters.count
        lost = {failure.page for failure in report.failed}
        if not lost:
            outcome = "stored"
        elif fate == "timed_out":
            outcome = "timed_out"
        elif full:
            outcome = "dropped"
        else:
            outcome = "part" if report.stored + report.existed else "failed"
        count("unikv_saves_total", outcome=outcome)
        count("unikv_written_bytes_total", report.bytes_written)
        count("unikv_pages_saved_total", max(0, report.pages - len(lost)))
        self._count_stages(report.seconds)
        if lost:
            reason = "arena_full" if full else fate or "error"
            count("unikv_pages_dropped_total", len(lost), reason=reason)
            first = report.failed[0]
            if full:
                self._teller.tell("save_dropped", pages=len(lost), reason=first.reason)
            else:
                self._teller.tell(
                    "save_failed", key=first.key, objects=len(report.failed), reason=first.reason
                )

    def healed(self, keys: list[str]) -> None:
        """Count objects that were damaged and are stored anew."""
        if keys:
            self._meters.count("unikv_healed_objects_total", len(keys))
            self._teller.tell("healed", key=keys[0], objects=len(keys))

    def damaged(self, keys: list[str]) -> None:
        """Count objects that were found damaged."""
        if keys:
            self._meters.count("unikv_damaged_objects_total", len(keys))
            why = "its bytes do not fit its tags"
            self._teller.tell("damaged", key=keys[0], objects=len(keys), reason=why)

    def loaded(self, report: LoadReport, wanted: int, fate: Fate | None, *, full: bool) -> None:
        """Count a load of ``wanted`` pages."""
        count = self._meters.count
        late = fate == "timed_out"
        count("unikv_loads_total", outcome="timed_out" if late else _share(report.pages, wanted))
        count("unikv_pages_loaded_total", report.pages)
        count("unikv_read_bytes_total", report.bytes_read)
        count("unikv_needed_bytes_total", report.bytes_needed)
        count("unikv_pages_prefetched_total", report.prefetched, outcome="used")
        self._count_stages(report.seconds)
        if report.pages < wanted:
            kind = report.failed[0].kind if report.failed else "missing"
            reason = "arena_full" if full else fate or kind
            count("unikv_pages_missed_total", wanted - report.pages, reason=reason)
            if reason != "missing":
                why = str(report.stopped)
                self._teller.tell("load_stopped", pages=report.pages, wanted=wanted, reason=why)

    def prefetched(self, report: PrefetchReport, wanted: int, fate: Fate | None) -> None:
        """Count a prefetch of ``wanted`` pages."""
        count = self._meters.count
        outcome = "dropped" if report.deferred else _share(report.pages, wanted)
        if fate is not None:
            outcome = "timed_out" if fate == "timed_out" else "failed"
        count("unikv_prefetches_total", outcome=outcome)
        count("unikv_pages_prefetched_total", report.pages, outcome="fetched")
        count("unikv_read_bytes_total", report.bytes_read)
        self._count_stages(report.seconds)

    def _end(self, name: Call, outcome: str) -> None:
        if name == "save":
            self._meters.count("unikv_saves_total", outcome=outcome)
        elif name == "load":
            self._meters.count("unikv_loads_total", outcome=outcome)
        elif name == "prefetch":
            self._meters.count("unikv_prefetches_total", outcome=outcome)
        elif outcome == "failed":
            self._meters.count("unikv_matches_total", outcome=outcome)

    def _count_open(self, name: Call, step: int) -> None:
        if name in self._open:
            self._open[name] += step
            self._meters.set("unikv_open_tickets", self._open[name], call=name)

    def _count_stages(self, seconds: Mapping[str, float]) -> None:
        for stage, spent in seconds.items():
            self._meters.observe("unikv_stage_seconds", spent, stage=stage)


def _share(pages: int, wanted: int) -> str:
    return "whole" if pages == wanted else "part" if pages else "none"
