"""Depth: the place of a stored page in its sequence, from the header of an object. Bytes may lie.

Format source: docs/format.md, "Header": magic at 0, the page's index at 96.
"""

import os
from struct import Struct

MAGIC = b"\x89UKV\r\n\x1a\n"
INDEX_AT = 96
UNKNOWN = 0xFFFFFFFF

_INDEX = Struct("<I")
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def depth_in(folder: int, name: str) -> int | None:
    """Return the page index that a file in an open folder gives, None if it gives none."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=folder)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # one sector, and nothing ahead
            head = os.pread(fd, INDEX_AT + _INDEX.size, 0)
        finally:
            os.close(fd)
    except OSError:
        return None
    if len(head) < INDEX_AT + _INDEX.size or not head.startswith(MAGIC):
        return None
    (index,) = _INDEX.unpack_from(head, INDEX_AT)
    return None if index == UNKNOWN else int(index)
