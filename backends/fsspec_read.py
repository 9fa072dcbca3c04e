"""Fsspec reads: one span of one file, its length checked, into the caller's views. No batches."""

from unikv.backends.batch import short_object
from unikv.backends.fsspec_calls import FsspecCalls
from unikv.backends.fsspec_errors import may_pass
from unikv.errors import StoreError
from unikv.store import UNKNOWN_SIZE, Span


def read_span(calls: FsspecCalls, path: str, span: Span, wanted: int) -> bool:
    """Copy the ``wanted`` bytes of a span from a file; return whether there is one.

    Raises:
        StoreError: the file ends before the span does, or the file system gave other bytes than
            it was asked for.
        Exception: what the file system raised.
    """
    data: bytes | None = None
    if wanted:
        try:
            data = calls.read(path, span.start, span.stop)
        except FileNotFoundError:
            return False
        except Exception as error:
            # A range behind the end is told in many ways: the size decides.
            if may_pass(error) or _reaches(calls, path, span):
                raise
            return False
    if data is None or len(data) < wanted:
        if not _reaches(calls, path, span):
            return False
        data = data or b""
    if len(data) != wanted:
        raise StoreError(f"bytes {span.start}..{span.stop}: want {wanted} bytes, {len(data)} came")
    at, source = 0, memoryview(data)
    for view in span.into:
        if view.nbytes:  # an empty view cannot be cast
            view.cast("B")[:] = source[at : at + view.nbytes]
            at += view.nbytes
    return True


def _reaches(calls: FsspecCalls, path: str, span: Span) -> bool:
    """Return False where there is no file, True where it is long enough for all that is known.

    Raises:
        StoreError: it ends before the span does.
    """
    size = calls.size(path)
    if size is not None and UNKNOWN_SIZE != size < span.stop:
        raise short_object(size, span.start, span.stop)
    return size is not None
