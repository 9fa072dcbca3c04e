"""Checks: how promises are stated, so that they hold under pytest, without it and under `-O`.

They know no store. A check that fails says what was found and what was wanted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from reprlib import Repr
from typing import TypeVar
from unittest import SkipTest

from unikv.errors import StoreError

_Promise = TypeVar("_Promise", bound=Callable[..., None])
_SHORT = Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 12
_SHORT.maxstring = _SHORT.maxother = 200


class NotApplicable(SkipTest):
    """A promise that a store need not keep, and why. Pytest takes it for a skip."""


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `AssertionError` unless ``found`` equals ``wanted``; ``what`` names it."""
    __tracebackhide__ = True  # pytest shows the promise, not this
    if found != wanted:
        raise AssertionError(f"{what}: found {shown(found)}, want {shown(wanted)}")


def expect_true(holds: object, what: str) -> None:
    """Raise `AssertionError` unless something holds; ``what`` says what is wrong if not."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(what)


@contextmanager
def expect_error(word: str, what: str) -> Iterator[None]:
    """Raise `AssertionError` unless the block raises a `StoreError` that has ``word`` in it."""
    __tracebackhide__ = True
    try:
        yield
    except StoreError as error:
        if word not in str(error):
            raise AssertionError(
                f"{what}: want {word!r} in the error, it says {str(error)!r:.200}"
            ) from error
    else:
        raise AssertionError(f"{what}: want a StoreError, nothing was raised")


def shown(value: object) -> str:
    """Return a value for a message: short, and bytes by their length and how they begin."""
    if isinstance(value, bytes | bytearray) and len(value) > 24:
        return f"{len(value)} bytes {bytes(value[:12]).hex()}...{bytes(value[-4:]).hex()}"
    text = _SHORT.repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def each(**values: Sequence[object]) -> Callable[[_Promise], _Promise]:
    """Mark a promise that is to be kept for each of some values of its parameters."""

    def mark(promise: _Promise) -> _Promise:
        promise.__dict__["each"] = values
        return promise

    return mark


def values_of(promise: Callable[..., None]) -> Mapping[str, Sequence[object]]:
    """Return what `each` said of a promise."""
    values: Mapping[str, Sequence[object]] = promise.__dict__.get("each", {})
    return values
