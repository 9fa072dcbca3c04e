"""Evicting: processes that write and read beneath one bounded root until told to stop.

Run as ``python evicting.py write|read ROOT MAX_BYTES SEED``. Each tells its test ``ready``;
then it works until its standard input ends, and tells what became of it as JSON.

A prefix is pages 0 to `DEPTH` - 1, each of two chunks. Every object says at every place which it
is, and carries its depth where the format has a page's index.
"""

import json
import random
import select
import sys
from collections import Counter
from itertools import count

from unikv.backends.file import FileStore
from unikv.store import Item, Outcome, Span
from unikv.testing_data import content, page_key

WRITERS = 4
DEPTH = 24
SIZE = 4 * 4096
HEAD = b"\x89UKV\r\n\x1a\n".ljust(96, b"\0")


def key_of(prefix: object, depth: int, chunk: int) -> str:
    """Return the key of one chunk; chunks of a page share the page's hash."""
    return f"{page_key(f'{prefix} {depth}')}_H{chunk}"


def object_of(key: str, depth: int) -> bytes:
    """Return the one right content of an object."""
    head = HEAD + depth.to_bytes(4, "little")
    return head + content(key, SIZE - len(head))


def told(line: object) -> None:
    """Say a line to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def is_over() -> bool:
    """Return whether the test wants no more."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def write(store: FileStore, seed: str) -> None:
    """Save one prefix after the other, head first; tell what became of the objects."""
    codes: Counter[str] = Counter()
    for number in count():
        for depth in range(DEPTH):
            if is_over():
                told(json.dumps([codes, number]))
                return
            keys = [key_of(f"{seed} {number}", depth, chunk) for chunk in range(2)]
            outcomes = store.put([Item(key, [object_of(key, depth)]) for key in keys])
            codes.update(Outcome(code).name for code in outcomes.codes)


def read(store: FileStore, seed: str) -> None:
    """Load prefixes that are written, head first, until a page misses; tell what was right."""
    rng, counts = random.Random(seed), Counter[str]()
    data = [bytearray(SIZE), bytearray(SIZE)]
    newest = 0
    while not is_over():
        number = rng.randrange(newest + 2)
        prefix = f"{rng.randrange(WRITERS)} {number}"
        for depth in range(DEPTH):
            keys = [key_of(prefix, depth, chunk) for chunk in range(2)]
            spans = [Span(key, 0, SIZE, [memoryview(d)]) for key, d in zip(keys, data, strict=True)]
            codes = store.get(spans).codes
            for key, code, found in zip(keys, codes, data, strict=True):
                name = Outcome(code).name
                if code == Outcome.OK and found != object_of(key, depth):
                    name = "WRONG"
                counts[name] += 1
            if set(codes) != {Outcome.OK}:
                break
            newest = max(newest, number + 1)
    told(json.dumps([counts, newest]))


def main(role: str, root: str, max_bytes: str, seed: str) -> None:
    """Do the one or the other."""
    store = FileStore(root, max_bytes=int(max_bytes))
    told("ready")
    (write if role == "write" else read)(store, seed)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
