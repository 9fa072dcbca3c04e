"""FaultBytes: what faults make of an object's bytes. They know no plan and no store."""

from collections.abc import Sequence
from random import Random

from unikv.testing_fault_plan import How

GARBAGE = 0xDB
"""Each byte of what a fault wrote that is no object's."""


def fill(into: Sequence[memoryview]) -> None:
    """Overwrite views with garbage."""
    for view in into:
        if view.nbytes:  # an empty view cannot be cast
            view.cast("B")[:] = bytes([GARBAGE]) * view.nbytes


def scatter(data: bytes | bytearray, into: Sequence[memoryview]) -> None:
    """Copy ``data`` over views in order, as far as it goes."""
    at = 0
    for view in into:
        part = data[at : at + view.nbytes]
        if part:
            view.cast("B")[: len(part)] = part
        at += view.nbytes


def flipped(data: bytes | bytearray, draw: Random) -> bytes:
    """Return ``data``, which is not empty, with one bit turned over."""
    bit = draw.randrange(len(data) * 8)
    turned = bytearray(data)
    turned[bit // 8] ^= 1 << bit % 8
    return bytes(turned)


def torn(data: bytes | bytearray, how: How) -> bytes:
    """Return what a put leaves that was cut off half-way."""
    half = bytes(data[: len(data) // 2])
    return half if how == "cut" else half.ljust(len(data), b"\0")
