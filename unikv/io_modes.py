"""IoModes: makes the guard of a client, with I/O in threads or in a process. It asks no store."""

from functools import partial
from typing import TypeAlias

from unikv.arena import Arena
from unikv.crew import Crew, ThreadWorker
from unikv.errors import SpecError
from unikv.events import Listener, Teller
from unikv.guard import Guard
from unikv.io_host import IoHost
from unikv.meters import Meters
from unikv.performing import perform
from unikv.store import Opener, Store

Io: TypeAlias = str
"""``"threads"``, ``"process"`` or ``"host:"`` and the absolute path of a socket."""


def open_guard(
    store: Store,
    io: Io,
    arena_bytes: int,
    threads: int,
    numa_node: int | None,
    meters: Meters,
    listener: Listener,
) -> Guard:
    """Return a store behind deadlines, with an arena of its own.

    Raises:
        SpecError: an ``io`` that is none, or that the store cannot be used with.
        PoolError: there is not so much memory.
    """
    teller = Teller(listener, meters)
    if io == "threads":
        if numa_node is not None:
            raise SpecError("numa_node with io='threads': want io='process', which shares memory")
        arena = Arena(arena_bytes)
        if (register := getattr(store, "register", None)) is not None:
            register(arena.memory)
        crew = Crew(lambda _: ThreadWorker(partial(perform, store, arena.memory)), threads)
        return Guard(crew, arena, store, meters, teller)
    path = io[5:] if isinstance(io, str) and io.startswith("host:/") else ""
    if io != "process" and not (path and path.isprintable()):
        raise SpecError(f"io={io!r:.200}: want 'threads', 'process' or 'host:/path/of/a.sock'")
    opener = getattr(store, "opener", None)
    if not isinstance(opener, Opener):
        raise SpecError(
            f"io={io!r:.200} with {store!r:.200}, which no other process can open (it has no "
            "opener): want io='threads', or a store that open_store(url) returns"
        )
    arena = Arena(arena_bytes, shared=True, numa_node=numa_node)
    host = IoHost(opener, arena, path if io != "process" else None, meters, teller)
    return Guard(Crew(host.hire, threads, host.close), arena, store, meters, teller)
