"""Keys: the one spelling of an object's name, and back. They know no topology and no store."""

import re
from dataclasses import dataclass

from unikv.errors import KeyFormatError
from unikv.geometry import Interval
from unikv.pages import check_page_hash

LAYER_LIMIT = 2**16
GROUP_LIMIT = 2**16
PHASE_LIMIT = 2**20

_NAMESPACE = re.compile(r"[0-9a-f]{32}\Z")
_NUMBER = "(0|[1-9][0-9]{0,6})"
_KEY = re.compile(
    rf"([0-9a-f]{{64}})_([0-9a-f]{{32}})_L{_NUMBER}-{_NUMBER}(?:_H{_NUMBER})?(?:_T{_NUMBER})?\Z"
)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The name of one chunk of one page, ``{page}_{namespace}_L{start}-{stop}[_H{g}][_T{f}]``.

    ``layers`` are ordinals inside the component, half-open. ``group`` and ``phase`` are None where
    the namespace has no head groups or no token phases. ``str(key)`` and `parse` are exact
    inverses.

    Raises:
        KeyFormatError: a part is out of range or not of its form.
    """

    page: str  # 64 lower-case hex
    namespace: str  # digest, 32 lower-case hex
    layers: Interval
    group: int | None = None
    phase: int | None = None

    def __post_init__(self) -> None:
        check_page_hash(self.page)
        if not (isinstance(self.namespace, str) and _NAMESPACE.match(self.namespace)):
            raise KeyFormatError(
                f"namespace digest {self.namespace!r:.100}: want 32 digits of 0-9a-f"
            )
        start, stop = self.layers.start, self.layers.stop
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop <= LAYER_LIMIT:
            raise KeyFormatError(f"layers {start}-{stop}: want 0 <= start < stop <= {LAYER_LIMIT}")
        for name, value, limit in (
            ("group", self.group, GROUP_LIMIT),
            ("phase", self.phase, PHASE_LIMIT),
        ):
            if value is not None and (type(value) is not int or not 0 <= value < limit):
                raise KeyFormatError(f"{name} {value!r:.80}: want 0 to {limit - 1}, or None")

    def __str__(self) -> str:
        group = "" if self.group is None else f"_H{self.group}"
        phase = "" if self.phase is None else f"_T{self.phase}"
        layers = f"L{self.layers.start}-{self.layers.stop}"
        return f"{self.page}_{self.namespace}_{layers}{group}{phase}"

    @classmethod
    def parse(cls, text: str) -> "ObjectKey":
        """Return the key that ``text`` spells.

        Raises:
            KeyFormatError: it is not exactly what ``str`` of a key gives.
        """
        match = _KEY.match(text) if isinstance(text, str) else None
        if match is None:
            raise KeyFormatError(
                f"object key {text!r:.200}: want {{page, 64 hex}}_{{namespace, 32 hex}}"
                "_L{start}-{stop}[_H{group}][_T{phase}], numbers without leading zeros"
            )
        page, namespace, start, stop, group, phase = match.groups()
        if int(start) >= int(stop):
            raise KeyFormatError(f"object key {text!r}: layers {start}-{stop} hold none")
        return cls(
            page=page,
            namespace=namespace,
            layers=Interval(int(start), int(stop)),
            group=None if group is None else int(group),
            phase=None if phase is None else int(phase),
        )
