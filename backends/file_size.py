"""Sizes: numbers of bytes as people write them, and as disks hand them out. They know no store."""

import re

BLOCK = 4096
"""What an object's size is rounded up to, to tell how much room it takes on a disk."""

_SHAPE = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?(?:([KMGTP])(B|iB)?|B)?\Z", re.IGNORECASE)
_POWERS = {letter: power for power, letter in enumerate("KMGTP", 1)}
LARGEST = 2**62
"""Bytes that a bound may have: 4 EiB, more than any disk."""


def room_of(size: int) -> int:
    """Return the bytes of disk that an object of ``size`` bytes takes: whole blocks."""
    return -(-size // BLOCK) * BLOCK


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``1.5TB`` or ``200GiB`` means.

    ``KB MB GB TB PB`` are powers of 1000. ``KiB MiB GiB TiB PiB`` and the letter alone are powers
    of 1024. Capitals or not is all the same.

    Raises:
        ValueError: it is no size, or not above 0.
    """
    match = _SHAPE.match(text)
    if match is None:
        raise ValueError(f"{text!r:.40}: want bytes, as 4096, 10GB (10^9) or 10GiB (2^30)")
    whole, part, letter, ending = match.groups()
    unit = 1
    if letter:
        unit = (1000 if (ending or "").lower() == "b" else 1024) ** _POWERS[letter.upper()]
    part = part or ""
    size = int(whole + part) * unit // int("1" + "0" * len(part))
    if not 0 < size <= LARGEST:
        raise ValueError(f"{text!r:.40} is {size} bytes: want more than 0 and at most 4 EiB")
    return size
