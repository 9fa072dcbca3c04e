"""Samples of the identity tests: a namespace to vary, and a store of one dict."""

from collections.abc import Iterator, Sequence
from typing import Any

from unikv.namespace import Namespace
from unikv.spec import KVSpec
from unikv.store import Entry, Item, Outcome, Outcomes, Span

COMMIT = "hf:" + "0123456789" * 4
SPEC: dict[str, Any] = {
    "layers": 6,
    "kv_heads": 4,
    "head_dim": 8,
    "dtype": "bfloat16",
    "page_tokens": 16,
}


def make(**changes: Any) -> Namespace:  # Any: values of wrong types are a point
    """Build one small namespace with changes."""
    fields: dict[str, Any] = {
        "spec": KVSpec.mha(**SPEC),
        "weights": COMMIT,
        "rope": {"theta": 100000.0},
    }
    return Namespace(**(fields | changes))


class DictStore:
    """A `Store` of one dict that counts its calls."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, int]] = []

    def put(self, items: Sequence[Item], *, replace: bool = False) -> Outcomes:
        self.calls.append(("put", len(items)))
        codes = []
        for item in items:
            value = b"".join(item.buffers)
            there = self.objects.get(item.key)
            kept = there is not None and len(there) == len(value) and not replace
            codes.append(Outcome.EXISTED if kept else Outcome.OK)
            self.objects[item.key] = there if there is not None and kept else value
        return Outcomes(codes)

    def get(self, spans: Sequence[Span]) -> Outcomes:
        self.calls.append(("get", len(spans)))
        return Outcomes([self._read(span) for span in spans])

    def _read(self, span: Span) -> Outcome:
        value = self.objects.get(span.key)
        if value is None:
            return Outcome.MISS
        if len(value) < span.stop:
            return Outcome.FAILED
        start = span.start
        for view in span.into:
            view[:] = value[start : start + view.nbytes]
            start += view.nbytes
        return Outcome.OK

    def stat(self, keys: Sequence[str]) -> Sequence[int | None]:
        return [len(self.objects[key]) if key in self.objects else None for key in keys]

    def delete(self, keys: Sequence[str]) -> Outcomes:
        gone = [self.objects.pop(key, None) for key in keys]
        return Outcomes([Outcome.MISS if value is None else Outcome.OK for value in gone])

    def list(self, prefix: str = "") -> Iterator[Entry]:
        found = sorted(self.objects.items())
        return (Entry(key, len(data), None) for key, data in found if key.startswith(prefix))

    def close(self) -> None:
        self.objects.clear()
