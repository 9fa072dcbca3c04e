"""The `unikv inspect` command: its words, exit statuses, JSON and what it imports."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.stores import KEYED, MHA, NAMESPACES, PAGES, TAG_KEY, change, flip, write
from tests.tools.stores import read as read_object
from unikv.backends.file import FileStore
from unikv.hints import hint_key
from unikv.tools.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "inspect.md"
HINT = hint_key(MHA.family, 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def files(root: Path) -> Iterator[FileStore]:
    store = FileStore(root)
    yield store
    store.close()


class Told:
    """What a run of the command left behind."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        self.status = main(["inspect", *map(str, words)])
        self.out, self.err = capsys.readouterr()


def test_a_whole_store_is_status_0(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, MHA)
    told = Told(capsys, f"file://{root}", "--verify")
    assert (told.status, told.err) == (0, "")
    assert "Tiny 4L" in told.out
    assert "16 objects" in told.out


def test_a_damaged_object_is_status_1_once_it_is_looked_at(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = write(files, MHA)[0]
    change(files, key, flip(700))
    url = f"file://{root}"
    assert Told(capsys, url).status == 0
    for words in (("--verify",), (key,), (key[:64],), (root / key[:2] / key[2:4] / key,)):
        told = Told(capsys, url, *words)
        assert (told.status, told.err) == (1, "")
        assert "slab 0" in told.out


def test_an_object_file_is_taken_in_both_places(
    files: FileStore, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = write(files, MHA)[0]
    copy = tmp_path / "copy.bin"
    copy.write_bytes(read_object(files, key))
    told = [Told(capsys, copy), Told(capsys, f"file://{root}", copy)]
    assert [each.status for each in told] == [0, 0]
    assert told[0].out == told[1].out
    assert key in told[0].out


def test_an_object_file_in_the_current_folder_needs_no_slash(
    files: FileStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "copy.bin").write_bytes(read_object(files, write(files, MHA)[0]))
    monkeypatch.chdir(tmp_path)
    assert Told(capsys, "copy.bin").status == 0
    assert Told(capsys, "memory://", "copy.bin").status == 0


def test_a_hint_record_is_shown_by_its_key(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, MHA)
    told = Told(capsys, f"file://{root}", HINT)
    assert (told.status, "Tiny 4L" in told.out, MHA.digest in told.out) == (0, True, True)
    change(files, HINT, flip(10))
    assert Told(capsys, f"file://{root}", HINT).status == 1


def test_the_tag_key_comes_from_a_file(
    files: FileStore, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = write(files, KEYED, tag_key=TAG_KEY)[0]
    secret = tmp_path / "secret"
    secret.write_bytes(TAG_KEY)
    url = f"file://{root}"
    assert Told(capsys, url, "--verify").status == 1
    assert Told(capsys, url, "--verify", "--tag-key-file", secret).status == 0
    assert "keyed: needs the key" in Told(capsys, url, key).out
    told = Told(capsys, url, key, "--tag-key-file", secret)
    assert "keyed: needs the key" not in told.out
    assert TAG_KEY.decode() not in told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["URL", PAGES[0]], "holds no object of a page"),
        (["URL", f"{PAGES[0]}_{MHA.digest}_L0-3_H0"], "holds no object 7accc"),
        (["URL", HINT], "holds no object ns_"),
        (["URL", "7accc85"], "first 8 or more"),
        (["URL", "nonsense"], "want a page hash"),
        (["URL", "no/such/file"], "No such file"),
        (["URL", "/dev/null"], "no regular file"),
        (["ROOT"], "want file:///"),
        (["ROOT/none"], "no such file"),
        (["file://ROOT/none"], "no such folder"),
        (["warp://there"], "unknown scheme 'warp'"),
        (["redis://user:SECRET#x@host/0"], "'redis://***'"),
        (["redis:/user:SECRET@host/0"], "'***@host/0': no such file"),
        (["URL", "--tag-key-file", "ROOT/none"], "tag key file"),
        (["URL", "--tag-key-file", "/dev/zero"], "more than 4096 bytes"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(
    files: FileStore,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    says: str,
) -> None:
    files.stat(["x"])
    told = Told(
        capsys, *(w.replace("URL", "file://ROOT").replace("ROOT", str(root)) for w in words)
    )
    assert (told.status, told.out) == (2, "")
    assert says in told.err
    assert "SECRET" not in told.err
    assert len(told.err.splitlines()) == 1


def test_looking_at_a_folder_that_is_not_there_does_not_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Told(capsys, f"file://{tmp_path}/mistyped").status == 2
    assert not (tmp_path / "mistyped").exists()


def test_a_tag_key_that_is_too_short_is_told(
    files: FileStore, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, KEYED, tag_key=TAG_KEY)
    (tmp_path / "short").write_bytes(b"x")
    told = Told(capsys, f"file://{root}", "--verify", "--tag-key-file", tmp_path / "short")
    assert (told.status, told.out) == (2, "")


def test_json_has_the_documented_names_and_no_others(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = write(files, MHA)
    write(files, NAMESPACES["state"])
    for key in write(files, NAMESPACES["rows"], hint=False):
        change(files, key, lambda data: data[:-9])
    files.delete([keys[9]])
    change(files, keys[0], flip(700))
    change(files, keys[1], lambda data: data[:-1])
    documented = set(re.findall(r"`([a-z_0-9]+)`", DOCS.read_text()))
    url = f"file://{root}"
    forms = []
    for words in ((), (keys[0][:64],), (keys[0],), (HINT,)):
        told = Told(capsys, url, *words, "--json", "--verbose", "--verify")
        value = json.loads(told.out)
        forms.append(value["form"])
        assert value["ok"] is (told.status == 0)
        names = set(_names(value))
        assert names <= documented
        assert all(re.fullmatch("[a-z][a-z0-9_]*", name) for name in names)
    assert forms == ["store", "page", "object", "hint"]


def _names(value: object, inside: str = "") -> Iterator[str]:
    """Yield the names in nested JSON, but those inside specs and RoPE settings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if inside not in ("spec", "rope"):
                yield name
            yield from () if name in ("spec", "rope") else _names(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner, inside)


def test_json_of_a_store_tells_what_is_in_it(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = write(files, MHA)
    files.delete([keys[9]])
    value = json.loads(Told(capsys, f"file://{root}", "--json", "--verbose").out)
    (content,) = value["namespaces"]
    assert content["namespace"]["spec"] == MHA.spec.describe()
    assert content["namespace"]["rope"] == MHA.rope
    assert (content["pages"], content["complete_pages"], content["objects"]) == (4, 3, 15)
    assert content["incomplete"] == [{"page": PAGES[2], "missing": 1, "chunks": ["L3-4_H0"]}]


def test_the_example_in_the_docs_is_what_the_command_prints(
    files: FileStore, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = write(files, NAMESPACES["rows"], PAGES[:1])[0]
    value = json.loads(Told(capsys, f"file://{root}", key, "--json").out)
    shown = re.search(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert shown
    assert {**value, "source": "file:///var/kv"} == json.loads(shown[1])


def test_inspect_needs_neither_torch_nor_numpy(files: FileStore, root: Path) -> None:
    key = write(files, MHA)[0]
    code = (
        "import sys; from unikv.tools.cli import main;"
        f"[main(['inspect', 'file://{root}', w]) for w in ('--verify', '{key}', '{key[:64]}')];"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_terminal_without_unicode_gets_escapes_and_no_traceback(
    files: FileStore, root: Path
) -> None:
    write(files, NAMESPACES["mla"], PAGES[:1])
    for words in ([], [PAGES[0]]):
        done = subprocess.run(
            [sys.executable, "-m", "unikv.tools.cli", "inspect", f"file://{root}", *words],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            check=True,
        )
        assert done.stdout.isascii()
