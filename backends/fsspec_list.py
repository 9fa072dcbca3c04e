"""Fsspec listing: streams the objects of a place, as far as its file system streams. Opens no file.

Memory holds one folder's listing at a time or, where names lie flat, that of the keys with one and
the same first character.
"""

import posixpath
import string
from collections.abc import Iterator

from unikv.backends.file_names import OTHERS, folder_of, folders_for
from unikv.backends.fsspec_calls import Found, FsspecCalls
from unikv.errors import KeyFormatError
from unikv.store import Entry, check_key

_FIRST = string.digits + string.ascii_uppercase + "_" + string.ascii_lowercase


def flat_entries(calls: FsspecCalls, root: str, prefix: str) -> Iterator[Entry]:
    """Yield the objects that lie side by side in one folder."""
    if not calls.narrows:
        yield from _objects(calls.folder(root), root, prefix)
        return
    for part in [prefix] if prefix else _FIRST:
        yield from _objects(calls.beginning_with(root, part), root, prefix)


def foldered_entries(calls: FsspecCalls, root: str, prefix: str) -> Iterator[Entry]:
    """Yield the objects that lie in folders as `unikv.backends.file_names` says."""
    yield from _in_folder(calls, root, OTHERS, prefix)
    for first in folders_for(_folders(calls, root), prefix, depth=0):
        for second in folders_for(_folders(calls, f"{root}/{first}"), prefix, depth=1):
            yield from _in_folder(calls, root, f"{first}/{second}", prefix)


def _in_folder(calls: FsspecCalls, root: str, folder: str, prefix: str) -> Iterator[Entry]:
    path = f"{root}/{folder}"
    for entry in _objects(calls.folder(path), path, prefix):
        if folder_of(entry.key) == folder:
            yield entry


def _folders(calls: FsspecCalls, path: str) -> list[str]:
    return [
        posixpath.basename(found.path.rstrip("/"))
        for found in calls.folder(path)
        if found.kind == "directory"
    ]


def _objects(files: Iterator[Found], folder: str, prefix: str) -> Iterator[Entry]:
    """Yield those files right in a folder whose names are keys with a prefix.

    A name that ends with a slash is none: it marks a folder, in stores that have no folders.
    """
    folder = folder.strip("/")
    for file in files:
        above, _, name = file.path.lstrip("/").rpartition("/")
        if file.kind != "file" or above != folder or not name.startswith(prefix):
            continue
        try:
            check_key(name)
        except KeyFormatError:
            continue
        yield Entry(name, file.size, file.mtime)
