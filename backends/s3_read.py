"""Reading from S3: fills views with ranges of one object, and sizes it. It writes nothing there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unikv.backends.batch import Batch, short_object, span_bytes
from unikv.backends.s3_bucket import Bucket
from unikv.backends.s3_errors import Fault, S3Error, ends_call
from unikv.errors import KeyFormatError, StoreError
from unikv.store import Outcome, Span, check_key

SMALL = 64 * 1024
"""Bytes up to which a copy that holds the GIL costs less than one that gives it away."""


_FAR = 2**53
"""Where no object reaches, nor every server's and proxy's numbers."""


class Run(NamedTuple):
    """A range to ask for, and the positions of the spans that lie in it."""

    start: int
    stop: int
    positions: list[int]


def read_object(
    bucket: Bucket, spans: Sequence[Span], positions: Sequence[int], batch: Batch
) -> S3Error | None:
    """Fill the views of the spans at ``positions``, all of one key; note in ``batch`` how it went.

    Return the error that no other request of the call would escape, if there was one.
    """
    unasked: list[int] = []  # empty, or farther than servers take numbers: the size decides
    filled: list[int] = []
    for position in positions:
        try:
            check_key(spans[position].key)
            near = span_bytes(spans[position]) and spans[position].stop < _FAR
            (filled if near else unasked).append(position)
        except (KeyFormatError, StoreError) as error:
            batch.fail(position, f"get {spans[position].key!r:.200}", error)
    end = _read(bucket, spans, _runs(spans, filled), batch) if filled else None
    if unasked and end is not None:
        for position in unasked:
            another = end.of_another(bucket.place)
            batch.fail(position, f"get {spans[position].key!r:.200}", another)
    elif unasked:
        end = _check_ends(bucket, spans, unasked, batch)
    return end


def _runs(spans: Sequence[Span], positions: list[int]) -> list[Run]:
    """Join ranges that touch or overlap: none is read twice, and no byte between them."""
    if len(positions) == 1:
        _, start, stop, _ = spans[positions[0]]
        return [Run(start, stop, positions)]
    runs: list[Run] = []
    for position in sorted(positions, key=lambda position: spans[position].start):
        _, start, stop, _ = spans[position]
        if runs and start <= runs[-1].stop:
            last = runs[-1]
            last.positions.append(position)
            runs[-1] = last._replace(stop=max(last.stop, stop))
        else:
            runs.append(Run(start, stop, [position]))
    return runs


def _read(
    bucket: Bucket, spans: Sequence[Span], runs: Sequence[Run], batch: Batch
) -> S3Error | None:
    """Ask for some ranges in one call; return the error that ends the caller's, if any."""
    key = spans[runs[0].positions[0]].key
    try:
        found = bucket.ranges(key, [run.start for run in runs], [run.stop for run in runs])
    except S3Error as error:
        if error.fault is Fault.RANGE:
            return _read_inside(bucket, spans, runs, error, batch)
        _note(spans, runs, error, batch)
        return _end(error)
    for run, data in zip(runs, found, strict=True):
        _deliver(spans, run, data, batch)
    return None


def _end(error: S3Error) -> S3Error | None:
    return error if ends_call(error) else None


def _read_inside(
    bucket: Bucket, spans: Sequence[Span], runs: Sequence[Run], error: S3Error, batch: Batch
) -> S3Error | None:
    """Read again, without the ranges behind the object's end, for which all were refused."""
    try:
        size = bucket.size(spans[runs[0].positions[0]].key)
    except S3Error as another:
        _note(spans, runs, another, batch)
        return _end(another)
    inside = [run for run in runs if size is not None and run.start < size]
    if size is None or len(inside) == len(runs):  # gone meanwhile; or the server contradicts itself
        gone = S3Error(Fault.NO_KEY, "the object was deleted meanwhile")
        _note(spans, runs, gone if size is None else error, batch)
        return None
    for run in runs:
        if run.start >= size:
            for position in run.positions:
                key, start, stop, _ = spans[position]
                batch.fail(position, f"get {key!r}", short_object(size, start, stop))
    return _read(bucket, spans, inside, batch) if inside else None


def _note(spans: Sequence[Span], runs: Sequence[Run], error: S3Error, batch: Batch) -> None:
    """Note a fault for all spans of some runs."""
    for run in runs:
        for position in run.positions:
            if error.fault is Fault.NO_KEY:
                batch.codes[position] = Outcome.MISS
            else:
                batch.fail(position, f"get {spans[position].key!r}", error)


def _deliver(spans: Sequence[Span], run: Run, data: memoryview, batch: Batch) -> None:
    """Copy the bytes of a run into the views of its spans, each one if it got all of its own."""
    size = data.nbytes
    for position in run.positions:
        key, start, stop, into = spans[position]
        if size > run.stop - run.start:
            more = StoreError(f"asked for {run.stop - run.start} bytes, the server sent {size}")
            batch.fail(position, f"get {key!r}", more)
        elif stop - run.start > size:
            # An answer may be short in one case only: the object ends there.
            short = short_object(run.start + size, start, stop)
            batch.fail(position, f"get {key!r}", short)
        else:
            try:
                _scatter(data[start - run.start : stop - run.start], into)
            except (BufferError, ValueError) as error:  # a view was released meanwhile
                batch.fail(position, f"get {key!r}: want writable contiguous views", error)


def _scatter(data: memoryview, into: Sequence[memoryview]) -> None:
    """Copy bytes over views, in order."""
    at = 0
    for view in into:
        size = view.nbytes
        if not size:
            continue
        part = data[at : at + size]
        if size <= SMALL:
            view.cast("B")[:] = part
        else:  # numpy copies without the GIL
            np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(part, np.uint8))
        at += size


def _check_ends(
    bucket: Bucket, spans: Sequence[Span], positions: Sequence[int], batch: Batch
) -> S3Error | None:
    """Note of ranges that S3 cannot be asked for whether they lie in their object."""
    key = spans[positions[0]].key
    try:
        size = bucket.sure_size(key)
    except S3Error as error:
        for position in positions:
            batch.fail(position, f"get {key!r}", error)
        return _end(error)
    for position in positions:
        _, start, stop, _ = spans[position]
        if size is None:
            batch.codes[position] = Outcome.MISS
        elif stop > size:
            batch.fail(position, f"get {key!r}", short_object(size, start, stop))
    return None
