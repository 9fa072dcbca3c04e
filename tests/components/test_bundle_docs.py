"""The page on components: its example runs, and its tables have the names that there are."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from unikv import Component

PAGE = Path(__file__).parents[2] / "docs" / "components.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    assert re.fullmatch(r"\{'draft': '[\w-]+_H1 is not stored'\}\n", capsys.readouterr().out)


def test_every_field_of_a_component_is_told() -> None:
    told = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {field.name for field in fields(Component)} - {"namespace", "pool"} <= set(told)
