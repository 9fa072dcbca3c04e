"""Description: the namespace's text behind a payload, so that one object tells what it is.

It is read by people and tools only; no load depends on it. Format source: docs/format.md,
"Description".
"""

from struct import pack

from unikv.canonical import hash_text
from unikv.errors import FormatError
from unikv.header import TAG_BYTES, parse_header
from unikv.namespace import NAMESPACE_CONTEXT, TEXT_LIMIT
from unikv.seal import text_fits
from unikv.store import Buffer
from unikv.tags import XXH3_64, key_seed, tag_function

COUNT_BYTES = 4


def pack_description(text: bytes) -> bytes:
    """Return what stands behind a payload, less its tag: u32 length and canonical text."""
    return pack("<I", len(text)) + text


def parse_object_text(data: Buffer) -> bytes:
    """Return the canonical namespace text of the whole object ``data``.

    The text hashes to the digest in the header. Its tag is checked where that takes no secret.

    Raises:
        FormatError: ``data`` is no whole object, or its description is damaged.
    """
    view = memoryview(data).cast("B")
    header = parse_header(view)
    tail = view[header.header_bytes + header.payload_bytes :]
    count = int.from_bytes(tail[:COUNT_BYTES], "little")
    stop = COUNT_BYTES + count
    if len(tail) < COUNT_BYTES or count > TEXT_LIMIT or len(tail) != stop + TAG_BYTES:
        raise FormatError(
            f"{len(tail)} bytes behind the payload announce a text of {count}: want a length of "
            f"at most {TEXT_LIMIT} (4 bytes), so many bytes, and a tag of {TAG_BYTES}"
        )
    text = bytes(tail[COUNT_BYTES:stop])
    if (digest := hash_text(text, NAMESPACE_CONTEXT)) != header.namespace:
        raise FormatError(f"description of namespace {digest} in an object of {header.namespace}")
    keyless = header.tags == XXH3_64
    if keyless and not text_fits(tag_function(XXH3_64), key_seed(str(header.key)), tail):
        raise FormatError("description that does not fit its tag")
    return text
