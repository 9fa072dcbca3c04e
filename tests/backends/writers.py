"""Writers: processes that tests start, race and kill. Run as ``python writers.py save|kill ROOT``.

Each tells its test ``ready``, then does one thing for each line that it is sent.
"""

import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter

from unikv.backends.file import FileStore
from unikv.store import Item, Outcome
from unikv.testing_data import content, page_key

KEYS = [page_key(i) for i in range(40)] + [f"ns_{i}" for i in range(8)]


def size_of(key: str) -> int:
    """Return the size that a key's object has: some small, most many pages of memory."""
    return 4 + KEYS.index(key) * 6_001


def make(key: str, version: int) -> bytes:
    """Return an object that says at every place which key and version it is of."""
    return version.to_bytes(4, "little") + content(key, size_of(key) - 4, version)


def is_whole(key: str, data: bytes) -> bool:
    """Return whether bytes are one version of a key's object, from end to end."""
    return data == make(key, int.from_bytes(data[:4], "little"))


def tell(line: str) -> None:
    """Say a line to the test."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def save(store: FileStore) -> None:
    """Put all keys once, in batches; tell what became of them."""
    codes: Counter[str] = Counter()
    for i in range(0, len(KEYS), 6):
        outcomes = store.put([Item(key, [make(key, 0)]) for key in KEYS[i : i + 6]])
        codes.update(Outcome(code).name for code in outcomes.codes)
    tell(json.dumps(codes))


def make_items() -> list[Item]:
    """Return three versions of every object, so that writers do little but write."""
    objects = [(key, memoryview(make(key, version))) for key in KEYS for version in range(3)]
    return [Item(key, [data[:3], data[3:]]) for key, data in objects]


def write_on(store: FileStore, items: list[Item], rng: random.Random, stop: int) -> Counter[str]:
    """Put, replace and delete objects until something can be read from ``stop``."""
    codes: Counter[str] = Counter()
    while not select.select([stop], [], [], 0)[0]:
        outcomes = store.put(rng.sample(items, 4), replace=rng.random() < 0.8)
        codes.update(Outcome(code).name for code in outcomes.codes)
        store.delete(rng.sample(KEYS, 2))
    return codes


def kill_one(store: FileStore, items: list[Item], seed: str) -> None:
    """Start a writer from this prepared process, and kill it at a random moment."""
    rng = random.Random(seed)
    never, hold = os.pipe()
    child = os.fork()
    if child == 0:
        write_on(store, items, rng, never)
    time.sleep(rng.random() * 0.015)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(never)
    os.close(hold)
    tell("killed")


def live_beside(store: FileStore, items: list[Item]) -> tuple[int, int]:
    """Start a writer that nobody kills; return where it tells its counts, and what stops it."""
    stop, to_stop = os.pipe()
    told, to_tell = os.pipe()
    if os.fork() == 0:
        os.close(to_stop)  # so that the end of its parent ends it too
        codes = write_on(store, items, random.Random(0), stop)
        store.close()
        os.write(to_tell, json.dumps(codes).encode())
        os._exit(0)
    os.close(to_tell)
    return told, to_stop


def main(role: str, root: str) -> None:
    """Do a thing for each line of standard input."""
    store = FileStore(root)
    if role == "save":
        tell("ready")
        for _ in sys.stdin:
            save(store)
    else:
        items = make_items()
        told, to_stop = live_beside(store, items)
        tell("ready")
        for line in sys.stdin:
            kill_one(store, items, line)
        os.close(to_stop)
        tell(os.read(told, 10_000).decode())
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
