"""`unikv demo`, the command: what it prints, where the store is left, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.demo.lab import Lab
from unikv.tools import cli, demo_phases
from unikv.tools.demo_job import Done
from unikv.tools.demo_model import Model, Prefill
from unikv.tools.demo_report import DemoReport

pytestmark = pytest.mark.demo


@pytest.fixture
def loaded_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The command with the session's model and prefill in place of its own."""

    def prefill(_: Model, tokens: list[int]) -> Prefill:
        assert tokens == lab.sample.tokens  # the command asks just what the session asked
        return lab.sample.prefill

    monkeypatch.setattr("unikv.tools.demo_model.read_config", lambda _: lab.config)
    monkeypatch.setattr(Model, "load", lambda _: lab.sample.model)
    monkeypatch.setattr(Model, "prefill", prefill)
    return lab


@pytest.mark.usefixtures("loaded_lab")
def test_json_is_one_object_with_everything_and_nothing_beside_it(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    url = folder.as_uri()
    words = ["demo", "--json", "--write", "tp3,pp2", "--read", "tp3", "--tokens", "2"]
    assert cli.main([*words, "--store", url]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    told = json.loads(said.out)
    assert told["ok"] is True
    assert told["checks"] == {
        "kv_bitwise_equal": True,
        "tokens_equal": True,
        "other_slots_untouched": True,
        "exact_bytes_read": True,
    }
    assert told["stopped"] == told["differences"] == []
    assert told["model"]["layers"] == 30
    assert told["model"]["token_bytes"] == 23_040
    assert told["prompt"]["tokens"] >= 4096
    assert told["prompt"]["tail_tokens"] == told["prompt"]["tokens"] - 64 * told["prompt"]["pages"]
    assert told["namespace"]["layer_cuts"] == [0, 15, 30]
    assert len(told["namespace"]["digest"]) == 32
    assert told["write"]["topology"] == "tp3,pp2"
    assert told["read"]["topology"] == "tp3,pp1"
    assert len(told["write"]["ranks"]) == 6
    assert told["write"]["ranks"][0]["heads"] == [0, 1]
    total = told["prompt"]["pages"] * told["prompt"]["page_bytes"]
    assert told["read"]["payload_bytes"] == told["read"]["needed_bytes"] == total
    assert told["read"]["read_over_needed"] == 1.0
    for rank in told["read"]["ranks"]:
        assert rank["payload_bytes"] == rank["share_bytes"] == total // 3
        assert rank["header_bytes"] > 0
        assert rank["requests"] == 2 * told["prompt"]["pages"]
    assert told["store"]["objects"] == 6 * told["prompt"]["pages"]
    assert told["store"]["url"] == url
    assert told["store"]["inspect"] == f"unikv inspect '{url}'"
    assert told["generated"]["loaded_ids"] == told["generated"]["memory_ids"]
    assert len(told["generated"]["loaded_ids"]) == 2
    times = told["first_token_seconds"]
    assert times["warm"] == times["warm_load"] + times["warm_tail"]
    assert times["warm_load"] > 0
    assert len(told["grid"]) == 6
    assert told["grid"][0]["wrote"] == ["tp0 pp0"]
    assert told["grid"][1]["read"] == ["tp0 pp0"]


@pytest.mark.usefixtures("loaded_lab")
def test_people_get_a_report_that_fits_80_columns_and_a_command_that_works(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert cli.main(["demo", "--write", "pp3:11-10-9", "--read", "tp6", "--tokens", "2"]) == 0
    *report, inspect = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in report)
    said = "\n".join(report)
    for words in ("KV bitwise equal", "tokens equal", "cold", "warm", "w tp0 pp2", "tp5 pp0"):
        assert words in said
    assert "NO" not in said
    assert "\u2026" not in said  # nothing was cut short to fit
    assert inspect.strip().startswith("unikv inspect 'file:///")
    url = inspect.split("'")[1]
    (store,) = folder.iterdir()  # the KV files have gone
    assert url == store.as_uri()
    assert cli.main(["inspect", url]) == 0
    assert "SmolLM2" in capsys.readouterr().out


@pytest.mark.usefixtures("loaded_lab")
def test_no_keep_removes_the_temporary_store(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert cli.main(["demo", "--no-keep", "--write", "tp1", "--tokens", "1"]) == 0
    assert "removed" in capsys.readouterr().out
    assert list(folder.iterdir()) == []  # neither the store nor the KV files


@pytest.mark.usefixtures("loaded_lab")
def test_a_difference_exits_1_and_the_report_says_where(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_phase = demo_phases.read_phase

    def meddle(*args: object) -> demo_phases.Loaded:
        loaded = read_phase(*args)  # type: ignore[arg-type]  # passed through
        return loaded._replace(differences=("rank tp0 pp0: page 7, token 1, layer 2, K head 0",))

    monkeypatch.setattr(demo_phases, "read_phase", meddle)
    words = ["demo", "--store", folder.as_uri(), "--write", "tp1", "--tokens", "1"]
    assert cli.main(words) == 1
    said = capsys.readouterr().out
    assert "NO  KV bitwise equal" in said
    assert "page 7, token 1, layer 2" in said


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["--heads-per-chunk", "3"], "heads_per_chunk=1"),
        (["--layers-per-chunk", "20"], "layers_per_chunk="),
        (["--heads-per-chunk", "2"], "1, 3"),
        (["--write", "tp2"], "tp=1, 3"),
        (["--read", "pp4"], "pp_layers="),
        (["--write", "pp2:15-14"], "30"),
        (["--page-tokens", "5000"], "64"),
        (["--tokens", "9000"], "or fewer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("loaded_lab")
def test_what_does_not_fit_is_one_line_with_a_right_value_and_nothing_is_written(
    words: list[str],
    right: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert cli.main(["demo", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert right in said.err
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("loaded_lab")
def test_a_grid_coarser_than_the_readers_heads_reads_more_and_says_so(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    words = ["demo", "--json", "--write", "tp1", "--read", "tp3", "--heads-per-chunk", "3"]
    assert cli.main([*words, "--tokens", "1", "--store", folder.as_uri()]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["read"]["read_over_needed"] == 3.0
    assert "asked for" in told["namespace"]["grid_reason"]


def test_reports_and_ranks_hold_no_tensor(lab: Lab, folder: Path) -> None:
    report = lab.run("tp1,pp1", "tp1,pp1", folder.as_uri(), tokens=1)
    assert isinstance(report, DemoReport)
    assert all(isinstance(done, Done) for done in (*report.written, *report.loaded))
    json.dumps(report.to_json())
