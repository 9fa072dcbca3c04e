"""The page on writing a backend: what stands there is installed as it is, and keeps its word."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-backend.md"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay out what the page has as an installed package."""
    text = PAGE.read_text()
    folder = tmp_path_factory.mktemp("site")
    module, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (points,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    for name, code in {"sqlite_store.py": module, "test_sqlite_store.py": test}.items():
        assert f"`{name}`:" in text
        (folder / name).write_text(code)
    info = folder / "sqlite_store-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-store\nVersion: 1.0\n")
    header, line = points.strip().splitlines()
    assert header == '[project.entry-points."unikv.backends"]'
    (info / "entry_points.txt").write_text(f"[unikv.backends]\n{line.replace(chr(34), '')}\n")
    return folder


def run(package: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(package), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *words],
        cwd=package,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


def test_the_example_passes_its_own_test(package: Path) -> None:
    done = run(package, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", ".")
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"^\d\d passed", done.stdout.splitlines()[-1])  # and none skipped


def test_the_command_of_the_page_finds_the_example(package: Path, tmp_path: Path) -> None:
    main = "import sys; from unikv.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    url = f"sqlite://{tmp_path}/trial.db"
    done = run(package, "-c", main, "conformance", url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["broken"] == found["not_applicable"] == 0
    names = {*found, *found["promises"][0]}
    assert names <= set(re.findall(r"`(\w+)`", PAGE.read_text()))
