"""File names: where the file of a key lies beneath a root. They know no file system.

A key that begins with a page hash lies two folders deep, named by the hash's first four digits,
so that no folder grows large; all chunks of a page lie together. Any other key lies in ``_``.
"""

import re
from collections.abc import Iterable, Iterator

from unikv.store import KEY_BYTES, check_key

OTHERS = "_"
TEMPORARY = ".tmp"  # no key begins with a dot
PAGE_DIGITS = 64
"""How many hex digits a page's hash has, with which its keys begin."""

is_page_key = re.compile(
    rf"[0-9a-f]{{{PAGE_DIGITS}}}+[0-9A-Za-z_.-]{{0,{KEY_BYTES - PAGE_DIGITS}}}+\Z"
).match
"""Tells whether a text is a key that begins with a page's hash."""

_FOLDER = re.compile(r"[0-9a-f]{2}\Z")


def folder_of(key: str) -> str:
    """Return the folder that a key's file lies in, relative to the root.

    Raises:
        KeyFormatError: no store can hold the key.
    """
    if is_page_key(key):
        return f"{key[:2]}/{key[2:4]}"
    check_key(key)
    return OTHERS


def path_of(root: str, key: str) -> bytes:
    """Return the path of a key's file beneath a root, as the kernel takes it.

    Raises:
        KeyFormatError: no store can hold the key.
    """
    if is_page_key(key):  # most are: `folder_of`, without the call
        return f"{root}/{key[:2]}/{key[2:4]}/{key}".encode()
    return f"{root}/{folder_of(key)}/{key}".encode()


def is_folder(name: str) -> bool:
    """Return whether a name is one of a folder that keys with a page's hash lie in."""
    return _FOLDER.match(name) is not None


def folders_for(names: Iterable[str], prefix: str, depth: int) -> Iterator[str]:
    """Pick, of the names in a fan-out folder, the folders that may hold keys with a prefix.

    ``depth`` is 0 for names in the root, 1 for names in one of its folders.
    """
    wanted = prefix[2 * depth : 2 * depth + 2]
    return (name for name in names if _FOLDER.match(name) and name.startswith(wanted))
