"""Streaming: a load that fills pools layer by layer, whole or not at all. It writes no object.

Of the first component a few layers of all pages are read, verified and unpacked while the next
ones are on their way; every other component is read before. One failure fails the load: what is in
the pools then is of no page that counts.
"""

from collections.abc import Callable, Sequence

from unikv.coverage import pages_needed
from unikv.errors import SpecError
from unikv.geometry import Interval
from unikv.kernels.reference import Route
from unikv.lane import Lane
from unikv.reading import Leg, Reader
from unikv.reports import Failure, LoadReport

STEP_BYTES = 4 << 20
"""Bytes read at once, of one layer or of several: smaller steps cost more calls than they save."""


def stream_pages(ready: Callable[[int], None]) -> Callable[[Reader, Sequence[Leg]], LoadReport]:
    """Return a loader that tells ``ready`` how many layers of the first component are filled."""

    def load(reader: Reader, legs: Sequence[Leg]) -> LoadReport:
        return _stream(reader, legs, ready)

    return load


def streamed_leg(lanes: Sequence[Lane]) -> Lane:
    """Return the lane that streams: the first of a required component of which every page counts.

    Raises:
        SpecError: there is none.
    """
    for lane in lanes:
        if lane.dense and lane.required:
            return lane
    names = [lane.name for lane in lanes]
    raise SpecError(f"stream=True with components {names}: none of them needs every page")


def _stream(reader: Reader, legs: Sequence[Leg], ready: Callable[[int], None]) -> LoadReport:
    pages = len(reader.pages)
    own = streamed_leg([leg.lane for leg in legs])
    streamed = next(leg for leg in legs if leg.lane is own)
    others = [leg for leg in legs if leg is not streamed]
    wanted = [_wanted(leg, pages) for leg in others]
    at = sum(
        leg.lane.read.page_bytes * len(_lacking(reader, leg, rows))
        for leg, rows in zip(others, wanted, strict=True)
    )
    dropped: dict[str, str] = {}
    for leg, rows in zip(legs, [_wanted(leg, pages) for leg in legs], strict=True):
        if absent := leg.selection.unheld & set(rows):
            why = f"page {min(absent)}: component {leg.lane.name!r} has no slots for it"
            if leg.lane.required:
                return _report(reader, legs, dropped, why)
            dropped[leg.lane.name] = why
    shares, failures = reader.read(others, wanted, 0)
    for leg, found in zip(others, failures, strict=True):
        if found:
            first = found[min(found)]
            if leg.lane.required:
                return _report(reader, legs, dropped, _sentence(first, pages), first)
            dropped[leg.lane.name] = first.reason
    with reader.call.gate, reader.watch.stage("unpack"):
        for share in shares:
            if share.lane.name not in dropped:
                share.unpack(pages)
    failure = _stream_layers(reader, streamed, at, ready)
    if failure is not None:
        return _report(reader, legs, dropped, _sentence(failure, pages), failure)
    return _report(reader, legs, dropped)


def _stream_layers(
    reader: Reader, leg: Leg, at: int, ready: Callable[[int], None]
) -> Failure | None:
    """Fill the pool of one component; return what failed first."""
    lane, rows = leg.lane, leg.selection.rows
    layers, plan = lane.box.layers.size, lane.read
    held = reader.take(lane, rows, leg.selection.places)
    step = max(1, STEP_BYTES * layers // max(1, plan.read * len(rows)))
    rows = _lacking(reader, leg, rows)
    steps = [Interval(start, min(start + step, layers)) for start in range(0, layers, step)]
    reader.bytes_headers += len(rows) * len(plan.chunks) * lane.format.header_bytes
    reader.bytes_needed += len(rows) * plan.needed
    batch = reader.begin([leg], [rows], at, steps[0]) if steps and rows else None
    for some, after in zip(steps, [*steps[1:], None], strict=True):
        shares = held
        if batch is not None:
            read, [found] = reader.finish(batch)
            if found:
                return found[min(found)]
            shares = [*held, *read]
            # Not before: a layer is checked by its chunk's header, which came with an earlier one.
            batch = reader.begin([leg], [rows], at, after) if after else None
        pieces = [piece for piece in plan.pieces if some.start <= piece.layer < some.stop]
        route = Route.of(lane.pool.parts, pieces)
        with reader.call.gate, reader.watch.stage("unpack"):
            for share in shares:
                if share.staging is not None:
                    route.unpack(share.places, share.staging)
        ready(some.stop)
    return None


def _lacking(reader: Reader, leg: Leg, rows: Sequence[int]) -> Sequence[int]:
    """Return those of some rows that were not prefetched."""
    held = reader.held.get(leg.lane.name, {})
    return [row for row in rows if row not in held]


def _wanted(leg: Leg, pages: int) -> Sequence[int]:
    """Return the pages that a component is to restore for the whole of a load."""
    page_tokens = leg.lane.format.namespace.spec.page_tokens
    return pages_needed(leg.lane.coverage, pages, page_tokens)


def _sentence(failure: Failure, pages: int) -> str:
    return f"page {failure.page} of {pages}: {failure.reason}"


def _report(
    reader: Reader,
    legs: Sequence[Leg],
    dropped: dict[str, str],
    stopped: str | None = None,
    failure: Failure | None = None,
) -> LoadReport:
    """Return the report of a load that got all pages, or none where it was ``stopped``."""
    end = len(reader.pages) if stopped is None else 0
    return LoadReport(
        pages=end,
        bytes_read=reader.bytes_read,
        bytes_headers=reader.bytes_headers,
        bytes_needed=reader.bytes_needed,
        requests=reader.requests,
        prefetched=reader.prefetched,
        failed=(failure,) if failure else (),
        stopped=stopped,
        seconds=reader.watch.seconds,
        valid={leg.lane.name: 0 if leg.lane.name in dropped else end for leg in legs},
        dropped=dropped,
    )
