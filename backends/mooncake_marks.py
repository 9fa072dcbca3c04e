"""Marks: objects that stand for what Mooncake has no object for. They know no calls.

It holds no object without bytes, and cannot replace one of the same size but in place, under the
eyes of its readers. So an empty object is stored as one mark, and one that is about to be replaced
becomes another for a moment, which is of another size: then its old bytes stay for those who read.
"""

MARK_BYTES = 61
EMPTY = b"unikv: an object without bytes".ljust(MARK_BYTES, b"\n")
REPLACED = b"unikv: no object, another is about to be here".ljust(MARK_BYTES, b"\n")


def size_meant(data: bytes) -> int | None:
    """Return the size of an object of MARK_BYTES, by its bytes: 0, None, or its own."""
    if data == REPLACED:
        return None
    return 0 if data == EMPTY else MARK_BYTES
