"""Calls: what a worker does with a client, as generators that yield while a ticket is under way.

Each checks the pool, bit for bit, at every moment at which something is promised of it. They know
no process and no fault.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tests.soak.side import BrokenError, Side
from tests.soak.universe import GARBAGE, LAYERS
from unikv.errors import StoreError
from unikv.tickets import Ticket

if TYPE_CHECKING:
    from unikv.reports import LoadReport, SaveReport

PATIENCE_S = 30.0
"""Seconds, far beyond every deadline, after which a call counts as hung."""

CANCEL_S = 0.04

Call: TypeAlias = Iterator[None]
_Report = TypeVar("_Report")


def save(side: Side) -> Call:
    start, path = side.choose_part()
    lane, begun = side.filled(path), monotonic()
    report = side.client.save(path.pages, lane.slots, start=start)
    side.took("save", begun)
    lane.give_back()
    side.saved(path, report)
    yield


def save_async(side: Side) -> Call:
    """The slots are another's as soon as they are free, and the pages may come after the call."""
    start, path = side.choose_part()
    lane, after = side.pool.take(path.ids), Event()
    lane.spoil(GARBAGE)
    if side.rng.random() < 0.7:
        lane.fill()
        after.set()
    begun = monotonic()
    ticket = side.client.save_async(path.pages, lane.slots, start=start, after=after)
    side.took("save_async returns", begun)
    if not after.is_set():
        yield
        lane.fill()
        after.set()
    while not ticket.source_free():
        yield
    lane.spoil(GARBAGE)
    report = yield from _result_after(side, ticket)
    side.took("save_async", begun)
    lane.give_back()
    if report is not None:
        side.saved(path, report)


def save_equal(side: Side) -> Call:
    """Three at once: two tickets and a call on another thread."""
    path = side.choose()
    lanes = [side.filled(path) for _ in range(3)]
    reports: list[SaveReport] = []
    third = Thread(
        target=lambda: reports.append(side.client.save(path.pages, lanes[2].slots)), daemon=True
    )
    tickets = [side.client.save_async(path.pages, lane.slots) for lane in lanes[:2]]
    third.start()
    first, second = tickets
    reports += [(yield from _result(first)), (yield from _result(second))]
    while third.is_alive():
        yield
    for lane in lanes:
        lane.give_back()
    if len(reports) < 3:
        raise BrokenError("a save on another thread raised, see standard error")
    for report in reports:
        side.saved(path, report)


def load(side: Side) -> Call:
    _, path = side.choose_part()
    lane, known, begun = side.pool.take(path.ids), side.known(path), monotonic()
    report = side.client.load(path.pages, lane.slots)
    side.took("load", begun)
    lane.check(report.pages)
    lane.give_back()
    side.loaded(path, report, known)
    yield


def load_async(side: Side) -> Call:
    """The lane is looked at once more when it is taken the next time."""
    _, path = side.choose_part()
    lane, known, begun = side.pool.take(path.ids), side.known(path), monotonic()
    after = Event()
    ticket = side.client.load_async(path.pages, lane.slots, after=after)
    side.took("load_async returns", begun)
    if side.rng.random() < 0.3:
        yield
    lane.check_untouched()
    after.set()
    report = yield from _result_after(side, ticket)
    side.took("load_async", begun)
    lane.check(report.pages if report is not None else 0)
    lane.give_back()
    if report is not None:
        side.loaded(path, report, known)


def stream(side: Side) -> Call:
    """Each layer is looked at as soon as it is said to be there."""
    _, path = side.choose_part()
    lane, known, begun = side.pool.take(path.ids), side.known(path), monotonic()
    ticket = side.client.load_async(path.pages, lane.slots, stream=True)
    try:
        for layer in range(LAYERS):
            ticket.wait_layer(layer, timeout=PATIENCE_S)
            lane.check_layer(layer)
            yield
    except StoreError:
        report = ticket.result(0)
        lane.check_harmless(whole=False)
        if report.pages:
            raise BrokenError(f"a stream failed, and says {report.pages} pages") from None
    else:
        report = yield from _result(ticket)
        lane.check(len(path.ids))
    side.took("stream", begun)
    lane.give_back()
    side.loaded(path, report, known, "stream")


def prefetch(side: Side) -> Call:
    """A load follows that takes it over."""
    _, path = side.choose_part()
    ticket, begun = side.client.prefetch(path.pages), monotonic()
    fetched = yield from _result(ticket)
    side.took("prefetch", begun)
    outcome = "deferred" if fetched.deferred else "whole" if fetched.stopped is None else "part"
    side.counts[f"{side.name} prefetch {outcome}"] += 1
    lane, known = side.pool.take(path.ids), side.known(path)
    if side.rng.random() < 0.5:
        report = side.client.load(path.pages, lane.slots)
    else:
        report = yield from _result(side.client.load_async(path.pages, lane.slots))
    lane.check(report.pages)
    lane.give_back()
    side.loaded(path, report, known)


def match(side: Side) -> Call:
    _, path = side.choose_part()
    begun = monotonic()
    found = side.client.match(path.pages)
    side.took("match", begun)
    if not 0 <= found.pages <= len(path.ids):
        raise BrokenError(f"a match of {len(path.ids)} pages found {found.pages}")
    outcome = "whole" if found.pages == len(path.ids) else "part" if found.pages else "none"
    side.counts[f"{side.name} match {outcome}"] += 1
    yield


def cancel(side: Side) -> Call:
    """Anything, cancelled a moment later: from then on the slots are another's."""
    path, kind = side.choose(), side.rng.choice(["save", "load", "stream", "prefetch"])
    if kind == "prefetch":
        fetch = side.client.prefetch(path.pages)
        yield from _pause(side, fetch.done)
        fetch.cancel()
        side.counts[f"{side.name} cancel prefetch"] += 1
    elif kind == "save":
        yield from _cancel_save(side)
    else:
        yield from _cancel_load(side, stream=kind == "stream")


def _cancel_save(side: Side) -> Call:
    path = side.choose()
    lane = side.filled(path)
    ticket = side.client.save_async(path.pages, lane.slots)
    yield from _pause(side, ticket.done)
    ticket.cancel()
    lane.spoil(GARBAGE)
    try:
        side.saved(path, ticket.result(0))
    except CancelledError:
        side.counts[f"{side.name} cancel save"] += 1
    yield  # so that a put that still read the pool would store garbage
    lane.give_back()


def _cancel_load(side: Side, *, stream: bool) -> Call:
    path = side.choose()
    lane, known = side.pool.take(path.ids), side.known(path)
    ticket = side.client.load_async(path.pages, lane.slots, stream=stream)
    yield from _pause(side, ticket.done)
    ticket.cancel()
    try:
        report: LoadReport | None = ticket.result(0)
    except CancelledError:
        report = None
    if report is None or (stream and report.stopped is not None):
        lane.check_harmless(whole=not stream)
    else:
        lane.check(report.pages)
    lane.give_back()
    if report is None:
        side.counts[f"{side.name} cancel {'stream' if stream else 'load'}"] += 1
    else:
        side.loaded(path, report, known, "stream" if stream else "load")


def _pause(side: Side, done: Callable[[], bool]) -> Call:
    until = monotonic() + side.rng.random() * CANCEL_S
    while monotonic() < until and not done():
        yield


def _result(ticket: Ticket[_Report]) -> Generator[None, None, _Report]:
    """Yield until a ticket is done; return its report."""
    while not ticket.done():
        yield
    return ticket.result(PATIENCE_S)


def _result_after(side: Side, ticket: Ticket[_Report]) -> Generator[None, None, _Report | None]:
    """Yield until a ticket is done; return its report, None where it began too late."""
    try:
        return (yield from _result(ticket))
    except StoreError as error:
        if "come after" not in str(error):  # on a busy machine the event is set too late
            raise
        side.counts[f"{side.name} after too late"] += 1
        return None


CALLS: Mapping[Callable[[Side], Call], int] = {
    save: 3,
    save_async: 4,
    save_equal: 2,
    load: 4,
    load_async: 4,
    stream: 4,
    prefetch: 3,
    match: 2,
    cancel: 4,
}
"""Calls, and how often each is chosen."""
