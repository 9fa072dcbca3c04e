"""FaultGets: a get whose spans go wrong as picked, byte for byte. It knows no faults of calls."""

from collections.abc import Mapping, Sequence

from unikv.backends.batch import Batch, span_bytes
from unikv.errors import StoreError
from unikv.store import Outcome, Outcomes, Span, Store
from unikv.testing_fault_bytes import fill, flipped, scatter
from unikv.testing_fault_picks import FaultPicks, Hit, merge


def get_with_faults(store: Store, picks: FaultPicks, spans: Sequence[Span]) -> Outcomes:
    """Get the spans, but spoil those that are picked. Late writes come last of all."""
    hits = picks.of_items("get", [span.key for span in spans])
    batch = Batch(len(spans))
    kept: list[int] = []  # positions of what is handed on
    wanted: list[Span] = []
    drafts: dict[int, tuple[Hit, bytearray]] = {}  # what is read for those that are picked
    for position, span in enumerate(spans):
        hit = hits.get(position)
        if hit is not None and _takes(span):
            if hit.rule.fault == "error":
                batch.codes[position] = Outcome.FAILED
                batch.errors[position] = hit.rule.failure(f"get {span.key!r:.200}")
                picks.tell("error", "get", span.key)
                fill(span.into)
                continue
            if hit.rule.fault == "miss":
                batch.codes[position] = Outcome.MISS
                picks.tell("miss", "get", span.key)
                continue
            draft = bytearray(span.stop - span.start)
            drafts[position] = (hit, draft)
            wanted.append(span._replace(into=[memoryview(draft)]))
        else:
            wanted.append(span)
        kept.append(position)
    answers = store.get(wanted)
    merge(batch, kept, answers)
    picks.recent.extend(spans[n].key for n in kept if batch.codes[n] == Outcome.OK)
    late: dict[int, tuple[Hit, bytearray]] = {}
    for position, (hit, draft) in drafts.items():
        if hit.rule.fault == "late":
            late[position] = (hit, draft)
        elif batch.codes[position] == Outcome.OK:
            scatter(_spoilt(store, picks, hit, spans[position], draft), spans[position].into)
    _write_late(picks, spans, late, batch)
    return batch.outcomes()


def _takes(span: Span) -> bool:
    """Tell whether a span's views can be written to; the store says what is wrong with others."""
    try:
        span_bytes(span)
    except StoreError:
        return False
    return True


def _spoilt(
    store: Store, picks: FaultPicks, hit: Hit, span: Span, data: bytearray
) -> bytes | bytearray:
    """Return what a span gets in place of ``data``."""
    spoilt: bytes | bytearray | None = None
    match hit.rule.fault:
        case "short":
            spoilt = data[: len(data) // 2] if data else None
        case "flip":
            spoilt = flipped(data, hit.draw) if data else None
        case _:  # swap
            spoilt = _another(store, picks, span)
    if spoilt is None:  # there is nothing to cut or flip, or to swap with
        return data
    picks.tell(hit.rule.fault, "get", span.key)
    return spoilt


def _another(store: Store, picks: FaultPicks, span: Span) -> bytearray | None:
    """Return the same range of another key that has it."""
    for key in picks.others(span.key):
        data = bytearray(span.stop - span.start)
        if store.get([Span(key, span.start, span.stop, [memoryview(data)])]).ok:
            return data
    return None


def _write_late(
    picks: FaultPicks,
    spans: Sequence[Span],
    late: Mapping[int, tuple[Hit, bytearray]],
    batch: Batch,
) -> None:
    """Wait, then write to the views at the very end of the call."""
    for position in late:
        picks.tell("late", "get", spans[position].key)
    for rule in dict.fromkeys(hit.rule for hit, _ in late.values()):
        picks.wait(rule)
    for position, (hit, draft) in late.items():
        if hit.rule.how == "garbage":
            fill(spans[position].into)
        elif batch.codes[position] == Outcome.OK:
            scatter(draft, spans[position].into)
