"""FaultPuts: a put whose items go wrong as picked, byte for byte. It knows no faults of calls."""

import errno
from collections.abc import Sequence
from contextlib import suppress

from unikv.backends.batch import Batch, item_bytes
from unikv.errors import KeyFormatError, StoreError
from unikv.store import UNKNOWN_SIZE, Buffer, Item, Outcome, Outcomes, Span, Store, check_key
from unikv.testing_fault_bytes import flipped, torn
from unikv.testing_fault_picks import FaultPicks, Hit, merge


def put_with_faults(
    store: Store, picks: FaultPicks, items: Sequence[Item], *, replace: bool
) -> Outcomes:
    """Put the items, but spoil those that are picked and would be written."""
    hits = picks.of_items("put", [item.key for item in items])
    batch = Batch(len(items))
    kept: list[int] = []  # positions of what is handed on
    wanted: list[Item] = []
    for position, item in enumerate(items):
        hit = hits.get(position)
        buffers: Sequence[Buffer] | None = item.buffers
        if hit is not None and hit.rule.fault in ("error", "full"):
            code = errno.ENOSPC if hit.rule.fault == "full" else errno.EIO
            batch.codes[position] = Outcome.FAILED
            batch.errors[position] = hit.rule.failure(f"put {item.key!r:.200}", code)
            picks.tell(hit.rule.fault, "put", item.key)
            buffers = item.buffers if hit.rule.when == "after" else None
        elif hit is not None and _would_write(store, item, replace=replace):
            buffers = _spoilt(store, picks, hit, item, items)
        if buffers is not None:
            kept.append(position)
            wanted.append(Item(item.key, buffers))
    answers = store.put(wanted, replace=replace)
    merge(batch, kept, answers)
    picks.recent.extend(items[n].key for n in kept if n not in batch.errors)
    return batch.outcomes()


def _would_write(store: Store, item: Item, *, replace: bool) -> bool:
    try:
        check_key(item.key)
        size = item_bytes(item.buffers)
    except (KeyFormatError, StoreError):  # the store says what is wrong with it
        return False
    return replace or store.stat([item.key])[0] not in (size, UNKNOWN_SIZE)


def _spoilt(
    store: Store, picks: FaultPicks, hit: Hit, item: Item, items: Sequence[Item]
) -> Sequence[Buffer] | None:
    """Return what is stored in place of an item's buffers, None for nothing at all."""
    data = b"".join(item.buffers)
    spoilt: bytes | None = None
    match hit.rule.fault:
        case "lost":
            picks.tell("lost", "put", item.key)
            return None
        case "torn":
            spoilt = torn(data, hit.rule.how) if data else None
        case "flip":
            spoilt = flipped(data, hit.draw) if data else None
        case _:  # swap
            spoilt = _another(store, picks, item, items)
    if spoilt is None:  # there is nothing to tear or flip, or to swap with
        return item.buffers
    picks.tell(hit.rule.fault, "put", item.key)
    return [spoilt]


def _another(store: Store, picks: FaultPicks, item: Item, items: Sequence[Item]) -> bytes | None:
    """Return the bytes of another key: of the batch, or else of the store."""
    for other in items:
        if other.key != item.key:
            with suppress(StoreError):
                item_bytes(other.buffers)
                return b"".join(other.buffers)
    for key in picks.others(item.key):
        size = store.stat([key])[0]
        if size is not None and size >= 0:
            data = bytearray(size)
            if store.get([Span(key, 0, size, [memoryview(data)])]).ok:
                return bytes(data)
    return None
