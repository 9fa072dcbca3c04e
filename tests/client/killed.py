"""Killed: a process that forks savers, kills them at random moments and looks at what is left.

python killed.py ROOT ROUNDS: prints one line of JSON. It forks, so it is a process of its own: the
test's has threads.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tests.client.world import World
from unikv import KVSpec, Topology, open_store
from unikv.backends.file import FileStore
from unikv.objects import ObjectFormat
from unikv.store import Span, Store

SPEC = KVSpec.mha(layers=4, kv_heads=2, head_dim=64, dtype="int32", page_tokens=16)
OPTIONS = {"layers_per_chunk": 2, "heads_per_chunk": 1}


def damages(store: Store, world: World) -> list[str]:
    """Check every object that can be seen, whole."""
    form = ObjectFormat.of(world.namespace)
    found = []
    for entry in store.list():
        if entry.key.startswith("ns_"):
            continue
        data = bytearray(entry.size)
        outcomes = store.get([Span(entry.key, 0, entry.size, (memoryview(data),))])
        assert outcomes.ok, outcomes
        found += [str(damage) for damage in form.check_object(entry.key, data)]
    return found


def save_until(stop: Path, url: str, world: World) -> None:
    """Save all pages again and again, deleting them in between, until ``stop`` is there."""
    store = open_store(url)
    side = world.side(store, Topology().rank(), filled=True)
    while not stop.exists():
        assert side.client.save(world.pages, side.slots).ok
        store.delete([entry.key for entry in store.list()])
    assert side.client.save(world.pages, side.slots).ok


def fork_saver(stop: Path, url: str, world: World) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            save_until(stop, url, world)
            code = 0
        finally:
            os._exit(code)
    return pid


def wait_for_writing(store: Store) -> None:
    """Wait until a saver has stored an object, however busy the machine is."""
    until = time.monotonic() + 10
    while time.monotonic() < until and all(e.key.startswith("ns_") for e in store.list()):
        time.sleep(0.0005)


def main() -> None:
    root, rounds = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    world = World(SPEC, pages_count=6, options=OPTIONS)
    random.seed(7)
    bad: list[str] = []
    seen = swept = 0
    for number in range(rounds):
        url = (root / str(number)).as_uri()
        store = open_store(url)
        assert isinstance(store, FileStore)
        pid = fork_saver(root / "never", url, world)
        wait_for_writing(store)
        time.sleep(random.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen += sum(1 for _ in store.list())
        bad += damages(store, world)
        swept += store.sweep()
        temporary = root / str(number) / ".tmp"
        bad += [f"left {path}" for path in temporary.rglob("*") if path.is_file()]
        side = world.side(store, Topology().rank())
        report = side.client.load(world.pages, side.slots)
        bad += [] if world.holds(side, report.pages) else [f"round {number}: a wrong pool"]
        store.close()
    # A live writer on a folder that is swept all the time loses nothing.
    url = (root / "live").as_uri()
    store = open_store(url)
    assert isinstance(store, FileStore)
    pid = fork_saver(root / "stop", url, world)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        swept += store.sweep()
    (root / "stop").touch()
    _, status = os.waitpid(pid, 0)
    bad += [] if status == 0 else [f"the live writer ended with {status}"]
    bad += damages(store, world)
    live = len(list(store.list(world.pages[0])))
    sys.stdout.write(json.dumps({"bad": bad, "seen": seen, "swept": swept, "live": live}))


if __name__ == "__main__":
    main()
