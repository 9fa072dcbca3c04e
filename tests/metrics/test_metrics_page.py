"""docs/metrics.md: its tables are the declarations, and its program runs."""

import logging
import re
import subprocess
import sys
from pathlib import Path

from unikv.events import KINDS
from unikv.meter_table import BOUNDS, METERS, Meter

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table that begins with ``heading``, without its first two lines."""
    table = PAGE[PAGE.index(heading) :].split("\n\n")[0].strip()
    return [[c.strip() for c in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def spell(meter: Meter) -> list[str]:
    labels = (f"`{name}`: {', '.join(values)}" for name, values in meter.labels.items())
    return [f"`{meter.name}`", meter.kind, "; ".join(labels), meter.help]


def test_the_page_has_every_metric_as_it_is_declared() -> None:
    assert rows("| name | kind |") == [spell(meter) for meter in METERS.values()]


def test_the_page_has_every_event_as_it_is_declared() -> None:
    declared = [
        [
            f"`{name}`",
            logging.getLevelName(kind.level),
            ", ".join(f"`{field}`" for field in kind.fields),
            kind.help,
        ]
        for name, kind in KINDS.items()
    ]
    assert rows("| kind | level |") == declared


def test_the_page_has_the_buckets() -> None:
    listed = re.findall(r"^    ([\d.e -]+)$", PAGE, re.MULTILINE)
    assert [float(bound) for line in listed for bound in line.split()] == list(BOUNDS)


def test_the_page_names_only_metrics_that_there_are() -> None:
    assert set(re.findall(r"unikv_\w+", PAGE)) <= {*METERS}


def test_its_program_runs() -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    done = subprocess.run(
        [sys.executable, "-c", found[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"
