"""Weights: what names the weights that made a cache. It knows no model and loads nothing."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from blake3 import blake3

from unikv.errors import SpecError

UNVERSIONED = "unversioned"
_WEIGHTS = re.compile(r"(hf:[0-9a-f]{40}|files:[0-9a-f]{64}|unversioned)\Z")


def check_weights(weights: object) -> None:
    """Raise `SpecError` unless ``weights`` is of one of the three forms.

    ``hf:`` and a commit (40 hex), ``files:`` and a digest (64 hex, see `weights_from_files`), or
    the word "unversioned". A branch or a tag is none: what it points to may change.
    """
    if not (isinstance(weights, str) and _WEIGHTS.match(weights)):
        raise SpecError(
            f"weights {weights!r:.100}: want 'hf:' and a commit of 40 hex digits, 'files:' and a "
            "digest of 64 (weights_from_files gives it), or 'unversioned' beside a model label"
        )


def weights_from_files(paths: Iterable[str | PathLike[str]]) -> str:
    r"""Return ``files:`` and the BLAKE3 of the sorted lines ``name\tsize\tsha256\n`` of the files.

    The name is the file's own, without folders, in NFC; the size is in bytes, decimal; lines are
    sorted by their UTF-8 bytes. Every file is read whole, so it takes as long as hashing does.

    Raises:
        SpecError: there are no files, two of one name, or a name with a tab or a line break.
        OSError: a file cannot be read.
    """
    lines: dict[str, bytes] = {}
    for path in map(Path, paths):
        name = unicodedata.normalize("NFC", path.name)
        if name in lines or not name or any(mark in name for mark in "\t\n\r"):
            raise SpecError(f"weight file {str(path)!r}: want names that differ, without tabs")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        lines[name] = f"{name}\t{size}\t{digest}\n".encode()
    if not lines:
        raise SpecError("weights from no files: want at least one")
    return f"files:{blake3(b''.join(sorted(lines.values()))).hexdigest()}"
