"""Calls: every count and event in the source is one that is declared, with its labels."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import unikv
from unikv.events import KINDS
from unikv.meter_table import METERS

SOURCE = Path(unikv.__file__).parent
ARGUMENTS = ("by", "seconds", "value")
KINDS_OF = {"count": "counter", "observe": "histogram", "set": "gauge"}


class Call(NamedTuple):
    """A call of a method whose first argument is a literal text."""

    where: str
    method: str
    name: str
    keywords: dict[str, ast.expr]
    more: int  # positional arguments behind the first


def calls(*methods: str) -> Iterator[Call]:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(attr=method), [ast.Constant(str(name)), *more]):
                    if method in methods:
                        keywords = {word.arg: word.value for word in node.keywords if word.arg}
                        where = f"{path.name}:{node.lineno}"
                        yield Call(where, method, name, keywords, len(more))


def is_named(text: str, *, but_in: str) -> bool:
    sources = (path.read_text() for path in SOURCE.rglob("*.py") if path.name != but_in)
    return any(f'"{text}"' in source for source in sources)


def counted() -> list[Call]:
    return [call for call in calls(*KINDS_OF) if call.name.startswith("unikv_")]


def told() -> list[Call]:
    return [call for call in calls("tell") if call.more == 0]  # a Teller's takes keywords only


def test_every_count_is_declared() -> None:
    assert counted()
    for call in counted():
        assert call.name in METERS, call.where
        meter = METERS[call.name]
        assert meter.kind == KINDS_OF[call.method], call.where
        labels = {label: v for label, v in call.keywords.items() if label not in ARGUMENTS}
        assert sorted(labels) == sorted(meter.labels), call.where
        for label, value in labels.items():
            if isinstance(value, ast.Constant):
                assert value.value in meter.labels[label], call.where


def test_every_event_is_declared() -> None:
    for call in told():
        assert call.name in KINDS, call.where
        assert sorted(call.keywords) == sorted(KINDS[call.name].fields), call.where


@pytest.mark.parametrize("name", METERS)
def test_every_declared_metric_is_counted_somewhere(name: str) -> None:
    assert is_named(name, but_in="meter_table.py"), f"{name}: nobody counts it"


@pytest.mark.parametrize("kind", KINDS)
def test_every_declared_event_is_told_somewhere(kind: str) -> None:
    assert is_named(kind, but_in="events.py"), f"{kind}: nobody tells it"
