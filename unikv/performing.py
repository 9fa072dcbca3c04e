"""Performing: carries out orders on a store and the arena's bytes. It touches no pool.

read: plan → store.get → verify. write: header → store.put. It runs in an I/O thread or in the I/O
process; whoever ordered keeps the bytes until it is done, however late.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import TypeAlias, TypeVar

from unikv.errors import StoreError
from unikv.geometry import Interval
from unikv.objects import ObjectFormat
from unikv.orders import (
    Answer,
    Bad,
    Order,
    Peek,
    PeekDone,
    Post,
    PostDone,
    Read,
    ReadDone,
    ReadPart,
    Stat,
    StatDone,
    Unwritten,
    Write,
    WriteDone,
    refuse,
)
from unikv.planner import Plan
from unikv.store import Item, Outcome, Outcomes, Span, Store

MOST_TRIES = 3
"""How often an item is tried whose failure may pass, the first time counted."""

FIRST_PAUSE_S = 0.02
"""Longest pause before the second try; each further one is up to four times as long."""

_One = TypeVar("_One", Item, Span)
Perform: TypeAlias = Callable[[Order, float], Answer]


def perform(store: Store, memory: memoryview, order: Order, until: float) -> Answer:
    """Carry out an order, trying again until ``until`` (`time.monotonic`) what may pass.

    Whatever the store raises becomes the answer's error: nothing of such an order is done.
    """
    try:
        match order:
            case Read():
                return _read(store, memory, order, until)
            case Write():
                return _write(store, memory, order, until)
            case Stat(keys):
                return StatDone(store.stat(keys))
            case Peek():
                return _peek(store, order, until)
            case Post():
                return _post(store, order, until)
    except Exception as error:  # noqa: BLE001 - the edge of a backend, which may raise anything
        text = f"{type(error).__name__}: {error!s:.400}"
        outage = not isinstance(error, StoreError) or error.retryable
        return refuse(order, text, outage=outage)


def spans_of(part: ReadPart, memory: memoryview) -> list[Span]:
    """Return the byte ranges that fill the part's place in the arena, page by page."""
    plan = part.passage.read
    keys = plan.keys(part.pages)
    columns = plan.expand(len(part.pages), part.layers)
    data = memory[part.at : part.at + len(part.pages) * plan.page_bytes]
    return [
        Span(keys[key], start, stop, (data[place : place + stop - start],))
        for key, start, stop, place in zip(
            columns.key.tolist(),
            columns.start.tolist(),
            columns.stop.tolist(),
            columns.place.tolist(),
            strict=True,
        )
    ]


def _read(store: Store, memory: memoryview, order: Read, until: float) -> ReadDone:
    begun = perf_counter()
    spans = [span for part in order.parts for span in spans_of(part, memory)]
    planned = perf_counter()
    outcomes, retries = _persist(store.get, spans, until)
    got = perf_counter()
    bad: list[Bad] = []
    damaged: list[str] = []
    first = 0
    for n, part in enumerate(order.parts):
        width = part.passage.read.width(part.layers)
        unread = _unread(n, part, spans[first : first + width * len(part.pages)], outcomes, first)
        first += width * len(part.pages)
        bad += unread.values()
        if order.verify:
            for page in range(len(part.pages)):
                if page not in unread:
                    found = _verify(part, page, memory)
                    damaged += (key for key, _ in found)
                    bad += (Bad(n, page, *one, "damaged") for one in found[:1])
    seconds = {"plan": planned - begun, "get": got - planned, "verify": perf_counter() - got}
    return ReadDone(bad, damaged, seconds, outage=_outage(outcomes), retries=retries)


def _unread(
    number: int, part: ReadPart, spans: Sequence[Span], outcomes: Outcomes, first: int
) -> dict[int, Bad]:
    """Return the pages of which something was not read; ``first`` is where the spans begin."""
    found: dict[int, Bad] = {}
    codes = outcomes.codes
    width = len(spans) // max(1, len(part.pages))
    for n, span in enumerate(spans):
        if codes[first + n] != Outcome.OK and n // width not in found:
            if codes[first + n] == Outcome.MISS:
                why = Bad(number, n // width, span.key, f"{span.key} is not stored", "missing")
            else:
                error = outcomes.errors.get(first + n) or f"{span.key} could not be read"
                why = Bad(number, n // width, span.key, f"{error!s:.400}", "error")
            found[n // width] = why
    return found


def _verify(part: ReadPart, page: int, memory: memoryview) -> list[tuple[str, str]]:
    """Check all that was read of a page; return key and flaw of each object that is damaged."""
    plan, form = part.passage.read, part.passage.format
    base = part.at + page * plan.page_bytes
    found: list[tuple[str, str]] = []
    for c, slabs in plan.touched(part.layers):
        place = base + plan.place[c]
        damage = _check(form, plan, part.pages[page], c, slabs, memory, place)
        if damage is not None:
            found.append(damage)
    return found


def _check(
    form: ObjectFormat, plan: Plan, page: str, c: int, slabs: Interval, memory: memoryview, at: int
) -> tuple[str, str] | None:
    """Check slabs of one object, counted from the first that the plan reads; its header is read."""
    chunk, body = plan.chunks[c], at + form.header_bytes
    size = chunk.slab_bytes
    damage = form.check_apart(
        page,
        chunk,
        memory[at:body],
        memory[body + slabs.start * size : body + slabs.stop * size],
        plan.first_slab[c] + slabs.start,
        slabs.size,
    )
    return None if damage is None else (damage.key, str(damage))


def _write(store: Store, memory: memoryview, order: Write, until: float) -> WriteDone:
    begun = perf_counter()
    items = [(n, item) for n in range(len(order.pages)) for item in _encode(order, n, memory)]
    encoded = perf_counter()
    again = frozenset(order.again)
    stored = existed = written = retries = 0
    outages: list[bool] = []
    failed: list[Unwritten] = []
    for replace in (False, True):
        some = [(n, item) for n, item in items if (item.key in again) == replace]
        if not some:
            continue
        put = partial(store.put, replace=replace)
        outcomes, more = _persist(put, [item for _, item in some], until)
        retries += more
        outages.append(_outage(outcomes))
        for i, ((n, item), code) in enumerate(zip(some, outcomes.codes, strict=True)):
            if code == Outcome.FAILED:
                why = outcomes.errors.get(i) or "not stored"
                failed.append(Unwritten(n, item.key, f"{why!s:.400}"))
            elif code == Outcome.EXISTED:
                existed += 1
            else:
                stored += 1
                written += item.size
    lost = {key for _, key, _ in failed}
    return WriteDone(
        stored,
        existed,
        written,
        failed,
        [key for key in order.again if key not in lost],
        {"encode": encoded - begun, "put": perf_counter() - encoded},
        outage=bool(outages) and all(outages),
        retries=retries,
    )


def _encode(order: Write, n: int, memory: memoryview) -> list[Item]:
    """Return the objects of the chunks to write of a page."""
    plan, form = order.passage.write, order.passage.format
    page, parent, number, chunks = order.pages[n]
    base = order.at + n * plan.page_bytes + form.header_bytes
    items = []
    for c in chunks:
        chunk = plan.chunks[c]
        place = base + plan.place[c]
        payload = memory[place : place + chunk.payload_bytes]
        header, description = form.encode(page, chunk, payload, parent=parent, page_index=number)
        items.append(Item(form.key(page, chunk), (header, payload, description)))
    return items


def _peek(store: Store, order: Peek, until: float) -> PeekDone:
    buffers = [bytearray(stop - start) for _, start, stop in order.spans]
    spans = [
        Span(key, start, stop, [memoryview(buffer)])
        for (key, start, stop), buffer in zip(order.spans, buffers, strict=True)
    ]
    outcomes, retries = _persist(store.get, spans, until)
    data = [
        bytes(buffer) if code == Outcome.OK else b""
        for code, buffer in zip(outcomes.codes, buffers, strict=True)
    ]
    errors = {n: f"{error!s:.400}" for n, error in outcomes.errors.items()}
    codes = list(map(int, outcomes.codes))
    return PeekDone(codes, data, errors, outage=_outage(outcomes), retries=retries)


def _post(store: Store, order: Post, until: float) -> PostDone:
    put = partial(store.put, replace=order.replace)
    outcomes, retries = _persist(put, order.items, until)
    errors = {n: f"{error!s:.400}" for n, error in outcomes.errors.items()}
    codes = list(map(int, outcomes.codes))
    return PostDone(codes, errors, outage=_outage(outcomes), retries=retries)


def _outage(outcomes: Outcomes) -> bool:
    """Tell whether the store did nothing at all of a batch, though it might a moment later."""
    every = outcomes.errors.values()
    return 0 < len(every) == len(outcomes.codes) and all(error.retryable for error in every)


def _persist(
    call: Callable[[Sequence[_One]], Outcomes], batch: Sequence[_One], until: float
) -> tuple[Outcomes, int]:
    """Call for a batch, again for the items whose failure may pass; return how often that was."""
    outcomes = call(batch)
    pause, tries = FIRST_PAUSE_S, 1
    while tries < MOST_TRIES and outcomes.errors:
        again = [n for n, error in outcomes.errors.items() if error.retryable]
        wait = pause * random.uniform(0.5, 1)  # noqa: S311 - so that clients do not march in step
        if not again or monotonic() + wait >= until:
            break
        sleep(wait)
        pause, tries = pause * 4, tries + 1
        news = call([batch[n] for n in again])
        codes, errors = list(outcomes.codes), dict(outcomes.errors)
        for i, n in enumerate(again):
            codes[n] = news.codes[i]
            errors.pop(n)
            if i in news.errors:
                errors[n] = news.errors[i]
        outcomes = Outcomes(codes, errors)
    return outcomes, tries - 1
