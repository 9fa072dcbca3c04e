"""Commands whose standard output is closed, full, left by its reader or of no width."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.tools.stores import MHA, PAGES, write
from unikv.backends.file import FileStore

PLAN = ("plan", "--layers", "8", "--kv-heads", "2", "--head-dim", "8", "--deploy", "tp2")
# Without a model to load: only what the command does with its report counts here.
START = """
import sys
from unikv.tools import cli, demo
from unikv.tools.output import printing
def run(args):
    with printing():
        print("a long report " * 100_000)
    return 0
demo.run = run
sys.exit(cli.main())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = FileStore(tmp_path / "kv")
    write(store, MHA)
    store.close()
    return tmp_path / "kv"


@pytest.fixture(params=["plan", "plan --json", "inspect", "page", "inspect --json", "demo", "help"])
def words(request: pytest.FixtureRequest, root: Path) -> list[str]:
    url = f"file://{root}"
    found = {
        "plan": [*PLAN],
        "plan --json": [*PLAN, "--json"],
        "inspect": ["inspect", url],
        "page": ["inspect", url, PAGES[0]],
        "inspect --json": ["inspect", url, "--json"],
        "demo": ["demo"],
        "help": ["--help"],
    }
    return found[request.param]


def run(
    words: list[str], shell: str = "", *, stdout: IO[bytes] | int | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", START, *words]
    if shell:
        command = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *command]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=kept | env, check=False
    )


def test_a_full_device_is_one_line_and_status_2(words: list[str]) -> None:
    done = run(words, ">/dev/full")
    assert (done.returncode, done.stderr) == (
        2,
        b"unikv: standard output: No space left on device\n",
    )


def test_a_closed_output_is_one_line_and_status_2(words: list[str]) -> None:
    done = run(words, ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith(b"unikv: standard output is closed")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_has_gone_is_no_error_to_tell(words: list[str]) -> None:
    read, write_end = os.pipe()
    os.close(read)
    with os.fdopen(write_end, "wb") as out:
        done = run(words, stdout=out)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("columns", ["0", "00"])
def test_a_width_of_nothing_is_80_columns(root: Path, columns: str) -> None:
    for words in ([*PLAN], ["inspect", f"file://{root}", PAGES[0]], ["inspect", f"file://{root}"]):
        shown = [
            run(words, stdout=subprocess.PIPE, COLUMNS=width).stdout for width in (columns, "80")
        ]
        assert shown[0] == shown[1] != b""


def test_inspect_leaves_a_folder_as_it_was(root: Path) -> None:
    shutil.rmtree(root / ".tmp")
    before = sorted(root.rglob("*"))
    root.chmod(0o500)
    try:
        url = f"file://{root}"
        for words in ([url, "--verify"], [url, PAGES[0]], [f"{url}?readonly=0"]):
            done = run(["inspect", *words], stdout=subprocess.DEVNULL)
            assert (done.returncode, done.stderr) == (0, b"")
        assert sorted(root.rglob("*")) == before
    finally:
        root.chmod(0o700)
