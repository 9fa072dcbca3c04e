"""Performing: carries out orders on a store and the arena's bytes. It touches no pool.

read: plan → store.get → verify. write: header → store.put. With a codec it is read: headers →
store.get → lengths → store.get → verify → unpack, and write: pack → header → store.put. It runs in
an I/O thread or in the I/O process; whoever ordered keeps the bytes until it is done, however late.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import TypeAlias, TypeVar

from unikv.codec_read import Stored, header_spans, slab_spans, unpack
from unikv.errors import StoreError
from unikv.geometry import Interval
from unikv.objects import Damage, ObjectFormat
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
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Outcomes, Span, Store

MOST_TRIES = 3
"""How often an item is tried whose failure may pass, the first time counted."""

FIRST_PAUSE_S = 0.02
"""Longest pause before the second try; each further one is up to four times as long."""

_One = TypeVar("_One", Item, Span)
_Answer = TypeVar("_Answer")
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
                return StatDone(_counted(store.stat(keys), keys))
            case Peek():
                return _peek(store, order, until)
            case Post():
                return _post(store, order, until)
    except BaseException as error:  # noqa: BLE001 - the edge of a backend: a Rust panic, anything
        text = _told(error)
        outage = not isinstance(error, StoreError) or error.retryable
        return refuse(order, text, outage=outage)


def spans_of(part: ReadPart, memory: memoryview) -> list[Span]:
    """Return the byte ranges that fill the part's place in the arena, page by page.

    Of coded objects these are the headers alone: they tell where the rest lies.
    """
    if part.passage.format.codec is not None:
        return header_spans(part, memory)
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
    batches = [spans_of(part, memory) for part in order.parts]
    planned = perf_counter()
    outcomes, retries = _persist(store.get, [span for some in batches for span in some], until)
    got = perf_counter()
    bad: list[Bad] = []
    damaged: list[str] = []
    coded: dict[int, Collection[int]] = {}
    first = 0
    for n, (part, spans) in enumerate(zip(order.parts, batches, strict=True)):
        unread = _unread(n, part, spans, outcomes, first)
        first += len(spans)
        bad += unread.values()
        if part.passage.format.codec is not None:
            coded[n] = unread.keys()
        elif order.verify:
            for page in range(len(part.pages)):
                if page not in unread:
                    found = _verify(part, page, memory)
                    damaged += (key for key, _ in found)
                    bad += (Bad(n, page, *one, "damaged") for one in found[:1])
    seconds = {"plan": planned - begun, "get": got - planned, "verify": perf_counter() - got}
    heads = [span for n in coded for span in batches[n]]
    asked = sum(span.stop for span in heads), len(heads)
    done = ReadDone(bad, damaged, seconds, asked, outage=_outage(outcomes), retries=retries)
    return _read_slabs(store, memory, order, coded, done, until) if coded else done


def _read_slabs(
    store: Store,
    memory: memoryview,
    order: Read,
    coded: Mapping[int, Collection[int]],
    done: ReadDone,
    until: float,
) -> ReadDone:
    """Read and unpack what the headers place of coded parts; return all that was ``done`` then.

    ``coded`` are the parts, each with its pages whose headers were not read.
    """
    begun = perf_counter()
    coming: list[tuple[int, Stored]] = []
    flaws: list[tuple[int, int, Damage]] = []
    for n, lost in coded.items():
        some, found = slab_spans(order.parts[n], memory, lost)
        coming += ((n, one) for one in some)
        flaws += ((n, page, damage) for page, damage in found)
    planned = perf_counter()
    outcomes, retries = Outcomes([]), 0
    if coming:
        outcomes, retries = _persist(store.get, [one.span for _, one in coming], until)
    wrong = _wrong_sizes(store, [one for _, one in coming], outcomes)
    got = perf_counter()
    bad: dict[tuple[int, int], Bad] = {}
    for at, (n, one) in enumerate(coming):
        if at in wrong:
            flaws.append((n, one.page, wrong[at]))
        elif outcomes.codes[at] != Outcome.OK:
            bad.setdefault((n, one.page), _why(n, one.page, one.span, outcomes, at))
        elif damage := unpack(order.parts[n], one, memory, verify=order.verify):
            flaws.append((n, one.page, damage))
    for n, page, damage in flaws:
        bad.setdefault((n, page), Bad(n, page, damage.key, str(damage), "damaged"))
    spent = {"plan": planned - begun, "get": got - planned, "verify": perf_counter() - got}
    return ReadDone(
        [*done.bad, *bad.values()],
        [*done.damaged, *(damage.key for _, _, damage in flaws)],
        {stage: done.seconds[stage] + seconds for stage, seconds in spent.items()},
        (done.coded[0] + sum(sum(one.lengths) for _, one in coming), done.coded[1] + len(coming)),
        outage=done.outage or (len(coded) == len(order.parts) and _outage(outcomes)),
        retries=done.retries + retries,
    )


def _wrong_sizes(
    store: Store, coming: Sequence[Stored], outcomes: Outcomes
) -> Mapping[int, Damage]:
    """Return, by position, the objects that were not read since they are not as long as they say.

    Of other objects a wrong size is known beforehand, and the next save replaces them.
    """
    failed = [at for at, error in outcomes.errors.items() if not error.retryable]
    sizes: Sequence[int | None] = [None] * len(failed)
    if failed:
        with suppress(StoreError):
            sizes = store.stat([coming[at].key for at in failed])
    wrong: dict[int, Damage] = {}
    for at, size in zip(failed, sizes, strict=True):
        wanted = coming[at].object_bytes
        if size not in (None, UNKNOWN_SIZE, wanted):
            detail = f"{size} bytes are stored, want {wanted}"
            wrong[at] = Damage(coming[at].key, "size", detail)
    return wrong


def _unread(
    number: int, part: ReadPart, spans: Sequence[Span], outcomes: Outcomes, first: int
) -> dict[int, Bad]:
    """Return the pages of which something was not read; ``first`` is where the spans begin."""
    found: dict[int, Bad] = {}
    codes = outcomes.codes
    width = len(spans) // max(1, len(part.pages))
    for n, span in enumerate(spans):
        if codes[first + n] != Outcome.OK and n // width not in found:
            found[n // width] = _why(number, n // width, span, outcomes, first + n)
    return found


def _why(part: int, page: int, span: Span, outcomes: Outcomes, at: int) -> Bad:
    """Return why a span was not read."""
    if outcomes.codes[at] == Outcome.MISS:
        return Bad(part, page, span.key, f"{span.key} is not stored", "missing")
    error = outcomes.errors.get(at) or f"{span.key} could not be read"
    return Bad(part, page, span.key, f"{error!s:.400}", "error")


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
        buffers = form.compose(page, chunk, payload, parent=parent, page_index=number)
        items.append(Item(form.key(page, chunk), buffers))
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


def _counted(answers: Sequence[_Answer], asked: Sequence[object]) -> Sequence[_Answer]:
    """Return what a store answered, one for each that it was asked."""
    if len(answers) != len(asked):
        raise StoreError(f"the store gave {len(answers)} answers to {len(asked)} questions")
    return answers


def _told(error: BaseException) -> str:
    """Return an error as text; one that cannot even be told, by its type."""
    try:
        return f"{type(error).__name__}: {error!s:.400}"
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return type(error).__name__


def _outage(outcomes: Outcomes) -> bool:
    """Tell whether the store did nothing at all of a batch, though it might a moment later."""
    every = outcomes.errors.values()
    return 0 < len(every) == len(outcomes.codes) and all(error.retryable for error in every)


def _persist(
    call: Callable[[Sequence[_One]], Outcomes], batch: Sequence[_One], until: float
) -> tuple[Outcomes, int]:
    """Call for a batch, again for the items whose failure may pass; return how often that was."""
    outcomes = call(batch)
    _counted(outcomes.codes, batch)
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
