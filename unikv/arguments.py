"""Arguments: numbers and switches as callers give them, of any library's type. They ask nothing."""

import operator
from contextlib import suppress
from math import inf, isnan
from numbers import Real
from typing import TypeGuard


def whole_number(value: object) -> int | None:
    """Return a whole number of any library's type as an int; None for all else, and for a bool."""
    if type(value) is int:
        return value
    if hasattr(value, "__index__") and not isinstance(value, bool | type):
        with suppress(TypeError, ValueError, RuntimeError):  # as arrays of several numbers raise
            found = operator.index(value)
            # A tensor of one bool takes itself for a number.
            return None if "bool" in str(getattr(value, "dtype", "")) else found
    return None


def real_number(value: object) -> float | None:
    """Return a number of any library's type as a float; None for all else, a bool and NaN."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number beyond what a float holds
        return inf if value > 0 else -inf  # type: ignore[operator] # every real number has >
    return None if isnan(found) else found


def is_switch(value: object) -> TypeGuard[bool]:
    """Tell whether a value says on or off in so many words: None or [] would be off by mistake."""
    return type(value) is bool
