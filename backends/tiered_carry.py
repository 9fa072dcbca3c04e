"""Carry: whole objects from one store to another, with their sizes checked. It knows no tier."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

from unikv.backends.tiered_calls import try_get, try_put, try_stat
from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Outcomes, Span, Store

BATCH_BYTES = 32 << 20
"""Bytes that are carried at once; one object that is larger goes alone."""

Fate = Literal["carried", "there", "gone", "large", "failed", "changed"]

Hold = Callable[[Sequence[str]], AbstractContextManager[object]]
"""Keeps others from changing objects."""


class Carried(NamedTuple):
    """What became of one object."""

    key: str
    fate: Fate
    error: StoreError | None = None
    size: int | None = None  # of what was carried


def carry(
    source: Store,
    target: Store,
    keys: Mapping[str, bool],
    *,
    heal: bool = True,
    most_bytes: int | None = None,
    changed: Container[str] = (),
    hold: Hold = nullcontext,
) -> list[Carried]:
    """Copy objects; for each key, whether it is to replace one of the same size.

    What the target holds with the same size is "there" unless it is to be replaced; without
    ``heal`` what it holds with another size, too. What the source does not hold is "gone"; an
    object of more than ``most_bytes`` is "large"; one that is in ``changed`` once it was read, and
    ``hold`` is held, is not copied.
    """
    names = list(keys)
    found, done = look(source, names)
    if not found:
        return done
    held, _ = try_stat(target, list(found))
    to_copy: list[tuple[str, int]] = []
    for (key, size), there in zip(found.items(), held, strict=True):
        if most_bytes is not None and size > most_bytes:
            done.append(Carried(key, "large"))
        elif not keys[key] and (size == there or (there is not None and not heal)):
            done.append(Carried(key, "there"))
        else:
            to_copy.append((key, size))
    for batch in _batches(to_copy):
        items, unread = _read(source, batch)
        done += unread
        with hold([item.key for item in items]):
            late = {item.key for item in items if item.key in changed}  # once: it may grow
            done += [Carried(key, "changed") for key in late]
            done += _write(target, [item for item in items if item.key not in late], keys)
    return done


def look(store: Store, keys: Sequence[str]) -> tuple[dict[str, int], list[Carried]]:
    """Return the sizes of objects, and of each other key that it is "gone" or why it "failed".

    That `stat` tells no size may mean that it cannot: only who wants to read hears of a miss.
    """
    if not keys:
        return {}, []
    sizes, error = try_stat(store, keys)
    if error is not None:
        return {}, [Carried(key, "failed", error) for key in keys]
    found = {key: size for key, size in zip(keys, sizes, strict=True) if size is not None}
    unsure = [key for key in keys if key not in found]
    lacking = []
    if unsure:
        read = try_get(store, [Span(key, 0, 1, [memoryview(bytearray(1))]) for key in unsure])
        for place, (key, code) in enumerate(zip(unsure, read.codes, strict=True)):
            if code == Outcome.MISS:
                lacking.append(Carried(key, "gone"))
            else:
                lacking.append(Carried(key, "failed", read.errors.get(place) or _untold(key)))
    for key in [key for key, size in found.items() if size == UNKNOWN_SIZE]:
        del found[key]
        lacking.append(Carried(key, "failed", StoreError(f"{key!r}: its size cannot be told")))
    return found, lacking


def _untold(key: str) -> StoreError:
    error = StoreError(f"{key!r}: it is there, but its size could not be told")
    error.retryable = True
    return error


def _batches(objects: Sequence[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    batch: list[tuple[str, int]] = []
    total = 0
    for key, size in objects:
        if batch and total + size > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append((key, size))
        total += size
    if batch:
        yield batch


def _read(source: Store, batch: Sequence[tuple[str, int]]) -> tuple[list[Item], list[Carried]]:
    """Read objects into one buffer; return them, and what became of the others."""
    memory = memoryview(bytearray(sum(size for _, size in batch)))
    spans: list[Span] = []
    at = 0
    for key, size in batch:
        spans.append(Span(key, 0, size, [memory[at : at + size]]))
        at += size
    read = try_get(source, spans)
    items: list[Item] = []
    others: list[Carried] = []
    for position, (span, code) in enumerate(zip(spans, read.codes, strict=True)):
        if code == Outcome.OK:
            items.append(Item(span.key, [span.into[0]]))
        elif code == Outcome.MISS:
            others.append(Carried(span.key, "gone"))
        else:
            others.append(Carried(span.key, "failed", read.errors[position]))
    return items, others


def _write(target: Store, items: Sequence[Item], replace: Mapping[str, bool]) -> list[Carried]:
    done: list[Carried] = []
    for replacing in (False, True):
        some = [item for item in items if replace[item.key] == replacing]
        wrote = try_put(target, some, replace=replacing) if some else Outcomes([])
        for position, (item, code) in enumerate(zip(some, wrote.codes, strict=True)):
            if code == Outcome.FAILED:
                done.append(Carried(item.key, "failed", wrote.errors[position]))
            else:
                fate: Fate = "carried" if code == Outcome.OK else "there"
                done.append(Carried(item.key, fate, None, item.size))
    return done
