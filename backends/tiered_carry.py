"""Carry: whole objects from one store to another, with their sizes checked. It knows no tier."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from unikv.backends.tiered_calls import try_get, try_put, try_stat
from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Item, Outcome, Span, Store

BATCH_BYTES = 32 << 20
"""Bytes that are carried at once; one object that is larger goes alone."""

Fate = Literal["carried", "there", "gone", "large", "failed"]


class Carried(NamedTuple):
    """What became of one object."""

    key: str
    fate: Fate
    error: StoreError | None = None


def carry(
    source: Store,
    target: Store,
    keys: Mapping[str, bool],
    *,
    heal: bool = True,
    most_bytes: int | None = None,
) -> list[Carried]:
    """Copy objects; for each key, whether it is to replace one of the same size.

    What the target holds with the same size is "there" unless it is to be replaced; without
    ``heal`` what it holds with another size, too. What the source does not hold is "gone"; an
    object of more than ``most_bytes`` is "large".
    """
    names = list(keys)
    sizes, error = try_stat(source, names)
    if error is not None:
        return [Carried(key, "failed", error) for key in names]
    held, _ = try_stat(target, names)
    done: list[Carried] = []
    to_copy: list[tuple[str, int]] = []
    for key, size, there in zip(names, sizes, held, strict=True):
        if size is None:
            done.append(Carried(key, "gone"))
        elif size == UNKNOWN_SIZE:
            done.append(Carried(key, "failed", StoreError(f"{key!r}: its size cannot be told")))
        elif most_bytes is not None and size > most_bytes:
            done.append(Carried(key, "large"))
        elif not keys[key] and (size == there or (there is not None and not heal)):
            done.append(Carried(key, "there"))
        else:
            to_copy.append((key, size))
    for batch in _batches(to_copy):
        done += _copy(source, target, batch, keys)
    return done


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


def _copy(
    source: Store, target: Store, batch: Sequence[tuple[str, int]], replace: Mapping[str, bool]
) -> list[Carried]:
    """Copy objects through one buffer."""
    memory = memoryview(bytearray(sum(size for _, size in batch)))
    views: list[memoryview] = []
    at = 0
    for _, size in batch:
        views.append(memory[at : at + size])
        at += size
    spans = [Span(key, 0, size, [view]) for (key, size), view in zip(batch, views, strict=True)]
    read = try_get(source, spans)
    done: list[Carried] = []
    put: dict[bool, list[Item]] = {False: [], True: []}  # by whether they replace
    for position, (span, code) in enumerate(zip(spans, read.codes, strict=True)):
        if code == Outcome.OK:
            put[replace[span.key]].append(Item(span.key, [span.into[0]]))
        elif code == Outcome.MISS:
            done.append(Carried(span.key, "gone"))
        else:
            done.append(Carried(span.key, "failed", read.errors[position]))
    for replacing, items in put.items():
        wrote = try_put(target, items, replace=replacing)
        for position, (item, code) in enumerate(zip(items, wrote.codes, strict=True)):
            if code == Outcome.FAILED:
                done.append(Carried(item.key, "failed", wrote.errors[position]))
            else:
                done.append(Carried(item.key, "carried" if code == Outcome.OK else "there"))
    return done
