"""Passage: one namespace's objects and a rank's box of them, as plans. It knows no pool, no store.

It is all of a lane that an I/O process needs, and can be written down for it.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property

from unikv.claims import Claims
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.planner import Plan, plan_read, plan_write
from unikv.tags import BLAKE3_KEYED


@dataclass(frozen=True, eq=False)
class Passage:
    """The objects of a namespace (``format``) and the ``box`` of every page that moves."""

    format: ObjectFormat
    box: Box
    tag_key: bytes | None = field(repr=False)
    _claims: dict[Interval | None, Claims] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def of(cls, namespace: Namespace, box: Box, tag_key: bytes | None) -> "Passage":
        """Return the passage; ``tag_key`` is left aside where the namespace's tags take none.

        Raises:
            SpecError: the namespace's tags need a ``tag_key`` and there is none.
        """
        key = tag_key if namespace.tags == BLAKE3_KEYED else None
        return cls(ObjectFormat.of(namespace, key), box, key)

    @cached_property
    def read(self) -> Plan:
        """The copies that fill the box of a page."""
        return plan_read(self.format, self.box)

    @cached_property
    def write(self) -> Plan:
        """The chunks that the box owns. Raises `GridError` when it owns one only in part."""
        return plan_write(self.format, self.box)

    def claims(self, layers: Interval | None) -> Claims:
        """Return what is claimed of a page's objects when ``layers`` of the box are read."""
        found = self._claims.get(layers)
        if found is None:
            found = self._claims[layers] = Claims.of(self.format, self.read, layers)
        return found

    @cached_property
    def text(self) -> str:
        """The passage as JSON, tag key included: for a process of the same user, never for logs."""
        key = self.tag_key.hex() if self.tag_key is not None else None
        return json.dumps([self.format.namespace.canonical.decode(), asdict(self.box), key])

    @classmethod
    def parse(cls, text: str) -> "Passage":
        """Return the passage of such a text."""
        canonical, box, key = json.loads(text)
        return cls.of(
            Namespace.parse(canonical.encode()),
            Box(Interval(**box["layers"]), Interval(**box["heads"]), Phase(**box["phase"])),
            bytes.fromhex(key) if key is not None else None,
        )
