"""Weights: a digest of files that depends on their names and bytes, not on where they lie."""

import hashlib
import unicodedata
from pathlib import Path

import pytest
from blake3 import blake3

from unikv.errors import SpecError
from unikv.weights import check_weights, weights_from_files

FILES = {"model-00002.safetensors": b"two", "model-00001.safetensors": b"one", "Z.bin": b""}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write(tmp_path / "model", FILES)


def write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def test_the_digest_is_of_sorted_lines_of_name_size_and_sha256(paths: list[Path]) -> None:
    lines = [
        f"{name}\t{len(data)}\t{hashlib.sha256(data).hexdigest()}\n"
        for name, data in sorted(FILES.items())
    ]
    assert lines[0].startswith("Z.bin\t0\te3b0c442")
    assert weights_from_files(paths) == f"files:{blake3(''.join(lines).encode()).hexdigest()}"
    check_weights(weights_from_files(paths))


def test_order_and_folder_of_the_files_do_not_matter(paths: list[Path], tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", FILES)
    one = weights_from_files(paths)
    assert weights_from_files(reversed(paths)) == weights_from_files(map(str, elsewhere)) == one


@pytest.mark.parametrize(
    "files",
    [
        FILES | {"Z.bin": b"\0"},
        FILES | {"extra": b""},
        {"a": b"two", "model-00001.safetensors": b"one", "Z.bin": b""},
        dict(list(FILES.items())[:2]),
    ],
    ids=["a byte", "a file more", "a name", "a file less"],
)
def test_another_byte_name_or_file_is_another_digest(
    paths: list[Path], tmp_path: Path, files: dict[str, bytes]
) -> None:
    changed = write(tmp_path / "changed", files)
    assert weights_from_files(changed) != weights_from_files(paths)


def test_names_are_normalised(tmp_path: Path) -> None:
    name = "poids-\u00e9t\u00e9"
    composed = write(tmp_path / "one", {name: b"x"})
    decomposed = write(tmp_path / "two", {unicodedata.normalize("NFD", name): b"x"})
    assert weights_from_files(composed) == weights_from_files(decomposed)


def test_what_names_no_weights_is_refused(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="weights from no files: want at least one"):
        weights_from_files([])
    with pytest.raises(SpecError, match="want names that differ, without tabs"):
        weights_from_files([*paths, *write(tmp_path / "twice", {"Z.bin": b""})])
    with pytest.raises(SpecError, match="want names that differ, without tabs"):
        weights_from_files(write(tmp_path / "tab", {"a\tb": b""}))
    with pytest.raises(FileNotFoundError):
        weights_from_files([tmp_path / "missing"])


@pytest.mark.parametrize(
    "weights",
    ["", "unversioned ", "hf:" + "A" * 40, "hf:" + "a" * 64, "files:" + "a" * 40, "hf:" + "a" * 40 +
     "\n", "sha256:" + "a" * 64, None, 7, b"unversioned"],
)  # fmt: skip
def test_weights_have_three_forms(weights: object) -> None:
    with pytest.raises(SpecError, match=r"weights .*: want 'hf:' and a commit of 40 hex digits"):
        check_weights(weights)
