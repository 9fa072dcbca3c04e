"""Batch: outcomes of many items, and the checks that every backend makes of one. No storage."""

from collections.abc import Collection, Sequence

from unikv.errors import StoreError
from unikv.store import Buffer, Outcome, Outcomes, Span

_PASSING = (ConnectionError, TimeoutError, InterruptedError, BlockingIOError)
"""Causes that may be over a moment later."""


class Batch:
    """Gathers what became of each item; all are OK until said otherwise."""

    __slots__ = ("codes", "errors")

    def __init__(self, items: int) -> None:
        self.codes = [Outcome.OK] * items
        self.errors: dict[int, StoreError] = {}

    def fail(self, position: int, doing: str, cause: Exception) -> None:
        """Mark an item FAILED because of ``cause``; ``doing`` says what was tried on which key."""
        self.codes[position] = Outcome.FAILED
        self.errors[position] = explain(doing, cause)

    def outcomes(self) -> Outcomes:
        """Return the outcomes as the store's caller wants them."""
        return Outcomes(self.codes, self.errors)


def explain(doing: str, cause: Exception) -> StoreError:
    """Return a `StoreError` that says what was tried and why it failed, with its errno if any."""
    error = StoreError(f"{doing}: {getattr(cause, 'strerror', None) or cause}")
    error.errno = getattr(cause, "errno", None)
    error.retryable = getattr(cause, "retryable", isinstance(cause, _PASSING))
    # The frames of a traceback would keep the caller's buffers alive as long as the error.
    error.__cause__ = cause.with_traceback(None)
    return error


def raise_outage(asked: int, errors: Collection[StoreError]) -> None:
    """Raise the first of ``errors`` if there is one for each key that was ``asked`` for.

    For `stat`, whose None would say of a store that does not answer, or lets nobody in, that it is
    empty. Who calls it leaves out keys that are wrong themselves: they say nothing of the store.
    """
    if 0 < asked == len(errors):
        raise next(iter(errors))


def item_bytes(buffers: Sequence[Buffer]) -> int:
    """Return the bytes of an object that is to be stored.

    Raises:
        StoreError: a buffer that is none, or whose bytes do not lie in one run.
    """
    total = 0
    for index, buffer in enumerate(buffers):
        try:
            view = memoryview(buffer)
        except TypeError:
            raise StoreError(
                f"buffer {index} is a {type(buffer).__name__}: want bytes, bytearray or memoryview"
            ) from None
        except ValueError:
            raise StoreError(f"buffer {index} was released") from None
        if not view.c_contiguous:
            raise StoreError(f"buffer {index} has strides {view.strides}: want contiguous bytes")
        total += view.nbytes
    return total


def span_bytes(span: Span) -> int:
    """Return how many bytes a span wants, once its views are known to take just as many.

    Raises:
        StoreError: a range that is none, or views that are read-only, not contiguous or of
            another size together.
    """
    _, start, stop, into = span
    total = 0
    for view in into:
        if not isinstance(view, memoryview):
            raise StoreError(f"into holds a {type(view).__name__}: want memoryviews")
        try:
            size = view.nbytes
        except ValueError:
            raise StoreError("into holds a view that was released") from None
        if view.readonly or not view.c_contiguous:
            flaw = "is read-only" if view.readonly else f"has strides {view.strides}"
            raise StoreError(f"a view of {size} bytes {flaw}: want writable contiguous ones")
        total += size
    if not 0 <= start <= stop:
        raise StoreError(f"bytes {start}..{stop}: want 0 <= start <= stop")
    if total != stop - start:
        raise StoreError(
            f"bytes {start}..{stop} into views of {total} bytes: want {stop - start} bytes"
        )
    return total


def short_object(size: int, start: int, stop: int) -> StoreError:
    """Return the error for an object that ends before the wanted range does."""
    return StoreError(f"want bytes {start}..{stop}, the object has {size} bytes")
