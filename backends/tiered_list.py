"""Tiered listing: the objects of two stores, each once. It opens none of them.

The fast tier's entries come first, then those of the slow one that were not among them, each in
the order of its tier. Memory holds 8 bytes for each object of the fast tier.
"""

import secrets
from array import array
from collections.abc import Callable, Iterator
from hashlib import blake2b

from unikv.store import Entry

_WORD = 8


def union(fast: Iterator[Entry], slow: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries of ``fast``, and those of ``slow`` that have other keys.

    What is copied from one to the other meanwhile shows once: it is looked for in the fast tier
    before it is looked for in the slow one, and no copy makes it leave the slow one.
    """
    seen = array("Q")
    code = _coder()
    for entry in fast:
        seen.append(code(entry.key))
        yield entry
    if not seen:
        yield from slow
        return
    import numpy as np

    codes = np.frombuffer(seen, dtype=np.uint64).copy()
    codes.sort()
    for entry in slow:
        mine = np.uint64(code(entry.key))
        at = int(np.searchsorted(codes, mine))
        if at == len(codes) or codes[at] != mine:
            yield entry


def _coder() -> Callable[[str], int]:
    """Return a hash of keys that nobody who chooses keys can know beforehand."""
    salt = secrets.token_bytes(16)
    return lambda key: int.from_bytes(
        blake2b(key.encode(), digest_size=_WORD, key=salt).digest(), "little"
    )
