"""The `unikv plan` command: its words, exit statuses, JSON and what it imports."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.plans import DOCS, LLAMA_CONFIG
from unikv.namespace import CODECS, Namespace
from unikv.tools.cli import main
from unikv.tools.plan_warnings import find_warnings

NUMBERS = ("--layers", "80", "--kv-heads", "8", "--head-dim", "128")
GEMMA: dict[str, object] = {
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "dtype": "bfloat16",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
    "rope_theta": 10000.0,
}


class Told:
    """What a run of the command left behind."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        self.status = main(["plan", *map(str, words)])
        self.out, self.err = capsys.readouterr()


def planned(capsys: pytest.CaptureFixture[str], *words: object) -> Any:  # Any: JSON
    told = Told(capsys, *words, "--json")
    value = json.loads(told.out)
    assert value["ok"] is (told.status == 0)
    assert told.out.isascii()
    return value


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write(tmp_path / "Llama-70B", LLAMA_CONFIG)


def write(folder: Path, config: object) -> Path:
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_a_config_is_planned_by_its_path_and_by_its_folder(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = ("--deploy", "tp4,pp2", "--deploy", "tp2", "--deploy", "tp8,dcp2:16")
    told = Told(capsys, llama, *fleet)
    assert (told.status, told.err) == (0, "")
    assert Told(capsys, llama.parent, *fleet).out == told.out
    value = planned(capsys, llama, *fleet)
    assert value["model"] == "Llama-70B"
    assert value["placeholders"] == ["weights"]
    assert value["grid"] == {
        "layer_cuts": [0, 40, 80],
        "heads_per_chunk": 1,
        "phases": 2,
        "interleave": 16,
        "chunks_per_page": 32,
    }


def test_the_pasted_snippet_is_the_namespace_of_the_config(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = "hf:" + "cd" * 20
    words = ("--deploy", "tp4,pp2", "--weights", weights, "--page-tokens", "32", "--dtype", "int8")
    made: dict[str, Any] = {}
    exec(planned(capsys, llama, *words)["snippet"], made)
    assert made["namespace"] == Namespace.from_hf_config(
        LLAMA_CONFIG,
        weights=weights,
        page_tokens=32,
        dtype="int8",
        model="Llama-70B",
        layers_per_chunk=40,
        heads_per_chunk=2,
    )


def test_a_codec_makes_bytes_upper_bounds_and_reads_two_rounds(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (llama, "--deploy", "tp4,pp2", "--weights", "hf:" + "cd" * 20)
    plain, coded = planned(capsys, *words), planned(capsys, *words, "--codec", "zstd")
    assert (plain["codec"], coded["codec"]) == ("none", "zstd")
    assert coded["deployments"][0]["gets"] == 2 * plain["deployments"][0]["gets"]
    assert coded["prompt"]["stored_bytes"] >= plain["prompt"]["stored_bytes"]
    made: dict[str, Any] = {}
    exec(coded["snippet"], made)
    assert made["namespace"].codec == "zstd"
    assert 'codec="zstd"' in coded["snippet"]
    assert "codec" not in plain["snippet"]
    out = Told(capsys, *words, "--codec", "zstd").out
    assert f"at most {coded['stored_bytes_per_page']:,} bytes stored" in out
    assert "upper bounds" in out
    assert "upper bounds" not in Told(capsys, *words).out


def test_the_codecs_are_those_of_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    for codec in CODECS:
        assert planned(capsys, *NUMBERS, "--deploy", "tp1", "--codec", codec)["codec"] == codec
    with pytest.raises(SystemExit):
        main(["plan", *NUMBERS, "--deploy", "tp1", "--codec", "lz4"])
    assert "'none', 'zstd'" in capsys.readouterr().err


def test_the_printed_snippet_is_the_one_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*NUMBERS, "--deploy", "tp4,pp2")
    assert Told(capsys, *words).out.endswith(f"\n\n{planned(capsys, *words)['snippet']}\n")


def test_layers_of_one_type_are_a_component_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "Gemma", GEMMA)
    fleet = ("--deploy", "tp1,pp2:6-6")
    told = Told(capsys, path, *fleet)
    assert (told.status, "pass layer_types=" in told.err) == (2, True)
    words = (path, *fleet, "--layer-types", "sliding_attention", "--component", "swa")
    value = planned(capsys, *words)
    assert value["spec"]["layer_ids"] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert value["grid"]["layer_cuts"] == [0, 5, 10]
    shown = Told(capsys, *words).out
    assert "component swa" in shown
    assert "layers 0-10 of the component are the model's 0, 1, 2" in shown
    by_ids = planned(capsys, path, *fleet, "--layer-ids", "5,11")
    assert by_ids["grid"]["layer_cuts"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "kind", "size"),
    [
        (("--layers", 61, "--mla-dim", 576), "mla", 70272),
        (("--layers", 2, "--row-bytes", 132, "--rows-per-page", 64), "rows", 264),
        (("--layers", 2, "--kv-heads", 1, "--head-dim", 8, "--v-head-dim", 4), "mha", 48),
    ],
)
def test_numbers_tell_every_kind(
    words: tuple[object, ...], kind: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    value = planned(capsys, *words, "--deploy", "tp1", "--rope", '{"theta": 1e4}')
    assert (value["spec"]["kind"], value["kv_bytes_per_token"]) == (kind, size)
    assert value["placeholders"] == ["weights"]


def test_no_common_grid_is_status_1_with_reason_and_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*NUMBERS, "--deploy", "tp4", "--deploy", "tp5", "--read-only", "tp6")
    told = Told(capsys, *words)
    assert (told.status, told.err) == (1, "")
    assert "tp5,pp1: tp=5 neither divides nor is a multiple of 8 KV heads" in told.out
    near = "--deploy tp4,pp1 --deploy tp4,pp1 --read-only tp4,pp1 --page-tokens 64"
    assert near in told.out
    assert Told(capsys, *NUMBERS, *near.split()).status == 0
    value = planned(capsys, *words)
    assert [one["topology"] for one in value["reasons"]] == ["tp5,pp1", "tp6,pp1"]
    assert value["nearest"]["changes"] == [
        "tp4,pp1 instead of tp5,pp1",
        "tp4,pp1 instead of tp6,pp1",
    ]


def test_interleaves_that_differ_are_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--deploy", "tp1,dcp2:16", "--deploy", "tp8,dcp2:8", "--deploy", "tp2,dcp4:16")
    value = planned(capsys, *NUMBERS, *words)
    [reason] = value["reasons"]
    assert reason["topology"] == "tp8,pp1,dcp2:8"
    assert value["nearest"]["deploy"] == ["tp1,pp1,dcp2:16", "tp2,pp1,dcp4:16"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no deployment that writes"),
        (["--read-only", "tp2"], "no deployment that writes"),
        (["--deploy", "tp2"], "no model"),
        ([*NUMBERS, "--deploy", "tp2;pp2"], "want each axis once"),
        ([*NUMBERS, "--deploy", "tp128,pp80"], "10,240 ranks: want at most 4,096"),
        ([*NUMBERS, *["--deploy", "tp2"] * 27], "27 deployments: want at most 26"),
        (["CONFIG", "--layers", "3", "--deploy", "tp2"], "and --layers: want one of both"),
        (["ROOT/none", "--deploy", "tp2"], "No such file"),
        (["ROOT", "--deploy", "tp2"], "No such file"),
        (["BROKEN", "--deploy", "tp2"], "no JSON"),
        (["LIST", "--deploy", "tp2"], "want a JSON object"),
        (["/dev/zero", "--deploy", "tp2"], "want at most 16777216 bytes"),
        (["CONFIG", "--deploy", "tp2", "--dtype", "int3"], "dtype 'int3'"),
        (["CONFIG", "--deploy", "tp2", "--weights", "mine"], "weights 'mine'"),
        (["CONFIG", "--deploy", "tp2", "--rope", "spiral"], "--rope 'spiral': no JSON"),
        (["CONFIG", "--deploy", "tp2", "--rope", "[1]"], "want a JSON object"),
        ([*NUMBERS, "--deploy", "tp2", "--rope", "{}"], "rope {}: want settings such as"),
        (["CONFIG", "--deploy", "tp2", "--label", "a\nb"], "control characters"),
        (["CONFIG", "--deploy", "tp2", "--label", ""], "want a text that is not empty"),
        (["--layers", "3", "--deploy", "tp2"], "model of --layers: want --layers, and --kv-heads"),
        (["--kv-heads", "3", "--head-dim", "3", "--deploy", "tp1"], "want --layers"),
        ([*NUMBERS, "--mla-dim", "3", "--deploy", "tp2"], "--mla-dim: want"),
        (["--layers", "3", "--mla-dim", "3", "--v-head-dim", "3", "--deploy", "tp1"], "want"),
        ([*NUMBERS, "--layer-types", "x", "--deploy", "tp2"], "want --layer-ids"),
        ([*NUMBERS, "--layer-ids", "1,2", "--deploy", "tp2"], "want 80 model layers"),
        (["--layers", "5000", "--mla-dim", "1", "--deploy", "tp2"], "want at most 4000"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    (tmp_path / "root").mkdir()
    places = {
        "CONFIG": write(tmp_path / "config", LLAMA_CONFIG),
        "BROKEN": write(tmp_path / "broken", "{"),
        "LIST": write(tmp_path / "list", "[]"),
        "ROOT": tmp_path / "root",
        "ROOT/none": tmp_path / "root" / "none",
    }
    told = Told(capsys, *(places.get(word, word) for word in words))
    assert (told.status, told.out) == (2, "")
    assert says in told.err
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--page-tokens", "0"],
        ["--tokens", "many"],
        ["--put-price", "-1"],
        ["--get-price", "nan"],
        ["--storage-price", "inf"],
        ["--put-price", "1e308"],
        ["--storage-price", "cheap"],
        ["--layer-ids", "3,,7"],
        ["--layers", "٣"],
        ["--layers", "9" * 5000],
        ["--deploy"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_wrong_words_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


def test_json_has_the_documented_names_and_no_others(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented = set(re.findall(r"`([a-z_0-9]+)`", DOCS.read_text()))
    values = [
        planned(capsys, llama, "--deploy", "tp4,pp2", "--read-only", "tp16,cp2,dcp2"),
        planned(capsys, llama, "--deploy", "tp5"),
    ]
    names = {name for value in values for name in _names(value)}
    assert names <= documented
    assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert {"by_rank", "owners", "nearest", "reasons"} <= names


def test_the_highest_prices_and_most_tokens_are_finite_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [f"--{name}-price=1e15" for name in ("put", "get", "storage")]
    told = Told(capsys, *NUMBERS, "--deploy", "tp1", "--json", "--tokens", "9" * 19, *words)
    assert (told.status, "Infinity" in told.out, "NaN" in told.out) == (0, False, False)


def test_every_warning_is_documented() -> None:
    module = sys.modules[find_warnings.__module__]
    assert module.__file__
    source = Path(module.__file__).read_text()
    codes = set(re.findall(r'Warn\(\s*"([a-z0-9_]+)"', source)) | {"under_2_mib", "under_64_kib"}
    assert len(codes) >= 8
    assert codes | {"placeholder_rope"} <= set(re.findall(r"`([a-z_0-9]+)`", DOCS.read_text()))


def _names(value: object) -> Iterator[str]:
    """Yield the names in nested JSON, but those inside specs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from () if name == "spec" else _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


def test_the_example_in_the_docs_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = re.search(
        r"```sh\nunikv plan (.*?)```\n\n```json\n(.*?)```", DOCS.read_text(), re.DOTALL
    )
    assert shown
    assert planned(capsys, *shown[1].replace("\\\n", " ").split()) == json.loads(shown[2])


def test_the_python_in_the_docs_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    made: dict[str, Any] = {}
    exec(code, made)
    assert made["cut"].layer_cuts == (0, 40, 80)


def test_plan_needs_no_torch_and_its_module_nothing_heavy() -> None:
    code = (
        "import sys; import unikv.tools.plan, unikv.fleet;"
        "print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)));"
        "from unikv.tools.cli import main;"
        "main(['plan', '--layers', '4', '--mla-dim', '8', '--deploy', 'tp2']);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "False")
