"""State: one named tensor of a recurrent state, and how groups cut it. It knows no layers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from unikv.canonical import Json
from unikv.dtypes import DTYPES, check_dtype
from unikv.errors import SpecError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_SIZE_LIMIT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class StatePart:
    """One named tensor of a recurrent state, of ``shape`` at a page's end, in one layer.

    Axis 0 is cut into the spec's groups. With ``segments`` (they sum to ``shape[0]``) each segment
    is cut on its own, and a group holds its share of every segment in order: 8, 8 and 16 channels
    in 4 groups give each group 2 + 2 + 4. One segment is the same as none, and is kept as none.

    Raises:
        SpecError: the name is no lower-case word, or the shape or segments do not fit.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    segments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.match(self.name)):
            raise SpecError(f"state part name {self.name!r:.80}: want a word such as 'conv'")
        check_dtype(self.dtype)
        shape = self._sizes("shape", self.shape)
        segments = self._sizes("segments", self.segments)
        if not shape:
            raise SpecError(f"shape () of state part {self.name!r}: want one axis or more")
        if segments and sum(segments) != shape[0]:
            raise SpecError(
                f"segments {segments} of state part {self.name!r} sum to {sum(segments)}: "
                f"want {shape[0]}, the size of axis 0"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "segments", segments if len(segments) > 1 else ())

    def _sizes(self, field: str, values: Iterable[int]) -> tuple[int, ...]:
        sizes = tuple(values)
        if not all(type(size) is int and 0 < size <= _SIZE_LIMIT for size in sizes):
            raise SpecError(
                f"{field} {sizes!r:.80} of state part {self.name!r}: want whole numbers from 1 to "
                f"{_SIZE_LIMIT}"
            )
        return sizes

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor, all groups together."""
        return prod(self.shape) * DTYPES[self.dtype]

    def describe(self) -> dict[str, Json]:
        """Return the part as JSON values for the canonical text."""
        return {
            "dtype": self.dtype,
            "name": self.name,
            "segments": list(self.segments),
            "shape": list(self.shape),
        }


def check_parts(parts: Iterable[StatePart], groups: int) -> tuple[StatePart, ...]:
    """Return the parts of a state in ``groups``, without segments that shape no bytes.

    Raises:
        SpecError: there are none, two have one name, or the groups do not divide an axis 0.
    """
    checked = tuple(parts)
    if not all(isinstance(part, StatePart) for part in checked):
        raise SpecError(f"state parts {checked!r:.200}: want StatePart(name, dtype, shape) each")
    names = [part.name for part in checked]
    if not names or len(set(names)) != len(names):
        raise SpecError(f"state parts {names!r:.200}: want one or more, of different names")
    for part in checked:
        cut = part.segments or part.shape[:1]
        if any(size % groups for size in cut):
            raise SpecError(
                f"{groups} groups do not divide axis 0 of state part {part.name!r}, {cut}: "
                "want a common divisor"
            )
    if groups == 1:  # nothing is cut, so how it would be must not change the identity
        return tuple(StatePart(part.name, part.dtype, part.shape) for part in checked)
    return checked
