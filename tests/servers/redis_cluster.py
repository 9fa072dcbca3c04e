"""A cluster of three Valkey servers, whose slots can be moved while a test runs."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.redis_server import START_SECONDS, RedisServer, free_port

SLOTS = 16384


class ClusterNode(RedisServer):
    """A server in cluster mode, with a bus port of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        bus = free_port()
        mode = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
        # A node that died shall be missed soon, and the others go on without its slots.
        calm = ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]
        super().__init__(binary, folder, [*mode, *calm])
        self.bus = bus

    @property
    def name(self) -> str:
        """The node's id in the cluster."""
        return self.ask("CLUSTER", "MYID").split(b"\r\n")[1].decode()


class RedisCluster:
    """Three nodes with a third of the slots each."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.nodes = [ClusterNode(binary, folder / str(i)) for i in range(3)]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            bounds = [SLOTS * i // 3 for i in range(4)]
            for i, node in enumerate(self.nodes):
                node.ask("CLUSTER", "ADDSLOTSRANGE", bounds[i], bounds[i + 1] - 1)
                node.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            for node in self.nodes[1:]:
                self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus)
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}/0?cluster=1"

    def wait(self) -> None:
        """Wait until all nodes are up and are of one mind about who serves what."""
        deadline = time.monotonic() + START_SECONDS
        while not (all(map(_is_up, self.nodes)) and len({*map(_view, self.nodes)}) == 1):
            if time.monotonic() > deadline:
                raise AssertionError([_view(node) for node in self.nodes])
            time.sleep(0.05)

    def owner(self, slot: int) -> ClusterNode:
        """Return the node that serves a slot, as the first node has it."""
        for port, _, ranges in _view(self.nodes[0]):
            for part in ranges:
                first, _, last = part.partition("-")
                if int(first) <= slot <= int(last or first):
                    return next(node for node in self.nodes if node.port == port)
        raise AssertionError(_view(self.nodes[0]))

    def begin_move(self, slot: int, goal: ClusterNode) -> None:
        """Have a slot's keys go over to another node one by one, as somebody moves them."""
        source = self.owner(slot)
        goal.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", goal.name)

    def end_move(self, slot: int, goal: ClusterNode) -> None:
        """Have the slot at its goal, for all to know."""
        for node in sorted(self.nodes, key=lambda node: node is not goal):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", goal.name)
        self.wait()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def _is_up(node: ClusterNode) -> bool:
    info = node.ask("CLUSTER", "INFO")
    wanted = ("cluster_state:ok", f"cluster_slots_ok:{SLOTS}", "cluster_known_nodes:3")
    return all(word.encode() in info for word in wanted)


def _view(node: ClusterNode) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return the port, the epoch and the ranges of slots of each node, as one of them has it.

    Epochs too: a slot that is moved before all know them falls back to where it was.
    """
    lines = [line.split() for line in node.ask("CLUSTER", "NODES").decode().splitlines()]
    return tuple(
        sorted(
            (
                int(parts[1].partition("@")[0].rpartition(":")[2]),
                parts[6],
                tuple(part for part in parts[8:] if not part.startswith("[")),
            )
            for parts in lines
            if len(parts) >= 8
        )
    )
