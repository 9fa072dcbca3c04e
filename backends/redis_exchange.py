"""Exchange: sends a batch of commands to the servers of their keys, and on where those say so.

It knows how a batch travels, not what its commands mean.
"""

from collections.abc import Mapping, Sequence

from unikv.backends.redis_ask import REPLY_BYTES, Ask, Asked, Reply, Talk
from unikv.backends.redis_errors import Refusal, failure
from unikv.backends.redis_nodes import Nodes, target
from unikv.backends.redis_url import Node
from unikv.errors import StoreError

REDIRECTIONS = 5


class Exchange:
    """Asks the servers of a place: all of them at once, from one thread."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def name(self, key: str) -> bytes:
        """Return the name that a key has on the servers."""
        return b"%b%b" % (self.nodes.place.prefix.encode("ascii"), key.encode("ascii"))

    def ask(
        self, asks: Sequence[Ask], *, quiet: bool = False, flight: int = REPLY_BYTES
    ) -> list[Reply]:
        """Return the reply to each command, or the error why there is none.

        Commands that went out may have been carried out whatever the error. All have ``into``,
        or none has. With ``quiet`` the servers take no notice of the keys' being asked for, if
        they know how to (CLIENT NO-TOUCH, since Redis 7.2). No more is sent to a server while
        ``flight`` bytes are on their way to it or from it.
        """
        batch = Asked(asks, [None] * len(asks), set(), quiet, flight)
        try:
            nodes = self.nodes.locate([ask.key for ask in asks])
        except StoreError as error:
            return [error] * len(asks)
        groups: dict[Node, list[int]] = {}
        for position, node in enumerate(nodes):
            if node is None:
                batch.replies[position] = failure("the key's slot has no node", retryable=True)
            else:
                groups.setdefault(node, []).append(position)
        for _ in range(REDIRECTIONS):
            self._run(groups, batch)
            groups = self._redirected(groups, batch) if self.nodes.place.cluster else {}
            if not groups:
                break
        for positions in groups.values():
            for position in positions:
                batch.replies[position] = failure("the key's slot moves on and on", retryable=True)
        return batch.replies

    def _run(self, groups: Mapping[Node, Sequence[int]], batch: Asked) -> None:
        """Ask each node its part; while one works on a window, the others get theirs."""
        talks: list[Talk] = []
        try:
            for node in sorted(groups):  # in one order everywhere: two threads never wait in a ring
                try:
                    talks.append(Talk(self.nodes, node, batch, groups[node]))
                except StoreError as error:
                    self.nodes.failed(node)
                    for position in groups[node]:
                        batch.replies[position] = error
            busy = talks
            while busy:
                for talk in busy:
                    talk.send()
                for talk in busy:
                    talk.read()
                busy = [talk for talk in busy if talk.has_more]
        except BaseException:
            for talk in talks:
                talk.abandon()
            raise
        for talk in talks:
            talk.finish()

    def _redirected(
        self, groups: Mapping[Node, Sequence[int]], batch: Asked
    ) -> dict[Node, list[int]]:
        """Return what a node sent on, by where to; which of it is asked only for once is noted."""
        again: dict[Node, list[int]] = {}
        batch.asking.clear()
        for asked, positions in groups.items():
            for position in positions:
                reply = batch.replies[position]
                if not isinstance(reply, Refusal) or reply.code not in {"MOVED", "ASK"}:
                    continue
                node = target(reply, asked)
                if node is None:
                    continue
                again.setdefault(node, []).append(position)
                if reply.code == "ASK":
                    batch.asking.add(position)
                else:
                    self.nodes.moved(batch.asks[position].key, node)
        return again
