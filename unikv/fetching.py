"""Fetching: carries out reads, from a store into the arena, and checks what came. No threads.

plan → store.get → audit, object by object where the store reads one after the other: then it is
hashed while a processor's cache has it.
Of coded objects: headers → store.get → lengths → store.get → verify → unpack.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from time import perf_counter

from unikv.audit import Audit
from unikv.codec_read import Stored, header_spans, slab_spans, unpack
from unikv.errors import StoreError
from unikv.geometry import Interval
from unikv.objects import Damage, ObjectFormat
from unikv.orders import Bad, Read, ReadDone, ReadPart
from unikv.persisting import again, judged, outage_of, persist
from unikv.planner import Plan
from unikv.store import UNKNOWN_SIZE, Outcome, Outcomes, Span, Store, find_in_turn


def read(store: Store, memory: memoryview, order: Read, until: float) -> ReadDone:
    """Carry out a read; see `unikv.performing.perform`."""
    begun = perf_counter()
    batches = [spans_of(part, memory) for part in order.parts]
    audits = [
        Audit(part, memory) if order.verify and part.passage.format.codec is None else None
        for part in order.parts
    ]
    planned = perf_counter()
    outcomes = _get(store, batches, audits)
    every = [span for spans in batches for span in spans]
    outcomes, retries = again(store.get, every, outcomes, until)
    got, audited_s = perf_counter(), sum(audit.seconds for audit in audits if audit is not None)
    bad: list[Bad] = []
    damaged: list[str] = []
    coded: dict[int, Collection[int]] = {}
    first = 0
    for n, (part, spans, audit) in enumerate(zip(order.parts, batches, audits, strict=True)):
        unread = _unread(n, part, spans, outcomes, first)
        first += len(spans)
        bad += unread.values()
        if part.passage.format.codec is not None:
            coded[n] = unread.keys()
        elif audit is not None:
            for page, found in _verify(part, audit, unread, memory).items():
                damaged += (key for key, _ in found)
                bad.append(Bad(n, page, *found[0], "damaged"))
    seconds = {
        "plan": planned - begun,
        "get": got - planned - audited_s,
        "verify": perf_counter() - got + audited_s,
    }
    heads = [span for n in coded for span in batches[n]]
    asked = sum(span.stop for span in heads), len(heads)
    done = ReadDone(bad, damaged, seconds, asked, outage=outage_of(outcomes), retries=retries)
    return _read_slabs(store, memory, order, coded, done, until) if coded else done


def spans_of(part: ReadPart, memory: memoryview) -> list[Span]:
    """Return the byte ranges that fill the part's place in the arena, page by page.

    Of coded objects these are the headers alone: they tell where the rest lies.
    """
    if part.passage.format.codec is not None:
        return header_spans(part, memory)
    plan, pages = part.passage.read, len(part.pages)
    # All pages are alike. No line below runs in Python for each span but to make what it needs.
    columns = plan.spans if part.layers is None else plan.expand(1, part.layers)
    chunks, starts, stops, places = (column.tolist() for column in columns)
    tails = [plan.key_tails[c] for c in chunks]
    ends = [(at, at + stop - start) for at, start, stop in zip(places, starts, stops, strict=True)]
    bases = [part.at + n * plan.page_bytes for n in range(pages)]
    keys = [page + tail for page in part.pages for tail in tails]
    views = [memory[base + at : base + end] for base in bases for at, end in ends]
    rows = zip(keys, starts * pages, stops * pages, zip(views), strict=True)
    return list(map(Span._make, rows))


def _get(
    store: Store, batches: Sequence[Sequence[Span]], audits: Sequence[Audit | None]
) -> Outcomes:
    """Get all spans of an order's parts once, and have audits hear of those that came."""
    every = [span for spans in batches for span in spans]
    in_turn = find_in_turn(store, "get")
    if in_turn is None or not any(audits):
        outcomes = store.get(every)
        judged(outcomes, every)
        first = 0
        for spans, audit in zip(batches, audits, strict=True):
            if audit is not None:
                hear = audit.listener()
                for at in range(len(spans)):
                    if outcomes.codes[first + at] == Outcome.OK:
                        hear(at)
            first += len(spans)
        return outcomes
    codes: list[Outcome] = []
    errors: dict[int, StoreError] = {}
    for spans, audit in zip(batches, audits, strict=True):
        some = store.get(spans) if audit is None else in_turn(spans, audit.listener())
        judged(some, spans)
        errors.update((len(codes) + at, error) for at, error in some.errors.items())
        codes += some.codes
    return Outcomes(codes, errors)


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
        outcomes, retries = persist(store.get, [one.span for _, one in coming], until)
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
        outage=done.outage or (len(coded) == len(order.parts) and outage_of(outcomes)),
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
    if not any(codes):
        return found
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


def _verify(
    part: ReadPart, audit: Audit, unread: Container[int], memory: memoryview
) -> dict[int, list[tuple[str, str]]]:
    """Return, by page, key and flaw of each object that is damaged, of pages not in ``unread``."""
    plan, form = part.passage.read, part.passage.format
    touched = plan.touched(part.layers)
    found: dict[int, list[tuple[str, str]]] = {}
    for page, n in audit.suspects():
        c, slabs = touched[n]
        place = part.at + page * plan.page_bytes + plan.place[c]
        if page not in unread and (
            damage := _check(form, plan, part.pages[page], c, slabs, memory, place)
        ):
            found.setdefault(page, []).append(damage)
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
