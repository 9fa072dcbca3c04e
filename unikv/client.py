"""Client: save, match and load the pages of one rank's pools. It holds no policy.

save: PagedCache + page hashes → rank.box → plan_write → pack → header → store.put
load: page hashes → plan_read → store.get → verify → unpack → PagedCache
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from unikv.after import After, check_after, wait_for
from unikv.bundle import model_layers
from unikv.client_options import (
    DEADLINE_S,
    IO_THREADS,
    MOST_WAITING,
    MOVERS,
    STAGING_BYTES,
    check_deadline,
    check_endpoints,
    check_options,
    check_staging,
    check_start,
    check_switches,
    check_tag_key,
    check_threads,
    least_staging,
)
from unikv.closing import Closing
from unikv.component import Component, name_components
from unikv.draft import Drafter
from unikv.errors import PoolError, StoreError
from unikv.events import Listener, OnEvent
from unikv.gate import Gate
from unikv.io_modes import Io, open_guard
from unikv.lane import Lane, Selection, Writers
from unikv.loading import load_pages
from unikv.meters import Meters
from unikv.movers import Movers
from unikv.namespace import Namespace
from unikv.paged import PagedCache
from unikv.pages import check_pages
from unikv.reports import LoadReport, Match, PrefetchReport, SaveReport
from unikv.selecting import Selector, Tables
from unikv.siblings import Siblings
from unikv.store import Store
from unikv.store_call import StoreCall, closed_meanwhile
from unikv.streaming import stream_pages, streamed_leg
from unikv.tickets import LoadTicket, PrefetchTicket, SaveTicket, Ticket
from unikv.topology import Rank
from unikv.transfers import TOO_MANY, Transfers


class Client:
    """Moves the KV of one rank between its pools and a store.

    Args:
        store: any `Store`, as `open_store` returns it.
        components: a namespace, or components by name, each with its namespace and pool.
        rank: this process's place in its deployment.
        pool: the pool, where ``components`` is a namespace; a `Component` says more.
        writers: which replica of the same box writes a page: ``"striped"`` spreads pages over
            replicas by page hash, ``"first"`` leaves all to replica 0.
        siblings: read through another grid of the same family where it holds a longer prefix.
        verify: check every byte that is read before it reaches the pool.
        staging_bytes: the arena, host memory for staging; a larger transfer goes by windows.
        tag_key: secret for namespaces whose tags are ``"blake3_keyed"``. With a wrong one every
            object looks damaged, and saves replace what was loaded.
        drafters: the deployment's speculative drafters, by the components that hold their state.
        io: where the store is called, and bytes are hashed and verified: in ``"threads"`` of this
            process, in a ``"process"`` of its own, or in one that all engines of a host share by
            the socket at ``"host:/run/kv/io.sock"``. Processes need a store that can be opened
            anew (it has an ``opener``), so no ``memory://``.
        deadline_s: seconds that any call takes at most; what is not done then is a miss.
        io_threads: calls of the store at once.
        numa_node: node that the arena is to lie on; only where it is shared with a process.
        on_event: called with each `unikv.events.Event`, on the thread where it happens.

    Calls may come from several threads. Close the client when done, or use it in a ``with``.

    Attributes:
        meters: counts of all that it does, for `unikv.prometheus` or to be read.

    Raises:
        PoolError: a pool that does not hold the rank's box, or staging smaller than one page or
            larger than there is memory.
        SpecError: components without a namespace each, a missing ``tag_key``, an ``io`` that is
            none or that the store cannot be used with, or another option that cannot be right.
        TopologyError: sizes that do not fit the model.
    """

    def __init__(  # noqa: PLR0913 - keyword options, each with a default that fits most
        self,
        store: Store,
        components: Namespace | Mapping[str, Component],
        rank: Rank,
        pool: PagedCache | None = None,
        *,
        writers: Writers = "striped",
        siblings: bool = True,
        verify: bool = True,
        staging_bytes: int = STAGING_BYTES,
        tag_key: bytes | None = None,
        drafters: Sequence[Drafter] = (),
        io: Io = "threads",
        deadline_s: float = DEADLINE_S,
        io_threads: int = IO_THREADS,
        numa_node: int | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        check_options(store, rank, writers, on_event)
        check_switches(siblings=siblings, verify=verify)
        staging_bytes, io_threads = check_staging(staging_bytes), check_threads(io_threads)
        deadline_s = check_deadline(deadline_s)
        named = name_components(components, pool, drafters)
        layers = model_layers(named, drafters)
        self._lanes = [
            Lane.of(name, component, rank, model_layers=layers, writers=writers, tag_key=tag_key)
            for name, component in named.items()
        ]
        check_tag_key(tag_key, self._lanes)
        self._selector = Selector(self._lanes, several=isinstance(components, Mapping))
        least = least_staging(self._lanes)
        if staging_bytes < least:
            raise PoolError(
                f"staging_bytes={staging_bytes} is less than one page: want at least {least}"
            )
        # Every component may be read through a sibling at once: each has what is left, shared.
        spare = (staging_bytes - least) // len(self._lanes)
        others = [
            Siblings(lane, tag_key, lane.read.page_bytes + spare // lane.window_pages)
            for lane in self._lanes
            if siblings
        ]
        self.meters = Meters()
        self._store = store
        self._deadline_s = deadline_s
        self._ear = ear = Listener(on_event)
        guard = open_guard(store, io, staging_bytes, io_threads, numa_node, self.meters, ear)
        if any(lane.pool.on_gpu for lane in self._lanes):
            guard.arena.pin()
        self._movers = Movers(MOVERS, MOST_WAITING)
        asleep = self._movers.asleep
        self._transfers = Transfers(guard, self._lanes, others, verify=verify, asleep=asleep)
        self._pid = os.getpid()
        self._closing = Closing(self, partial(_let_go, self._transfers, self._movers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of threads, the I/O process and the arena; later calls raise `StoreError`.

        What is under way is cancelled, and what a store is still doing is not waited for. The
        store stays open. Closing twice is fine.
        """
        self._closing.close()

    def match(self, pages: Sequence[str]) -> Match:
        """Return how many leading ``pages`` this rank could load. A hint: the load decides.

        Raises:
            KeyFormatError: a text that is no page hash.
        """
        check_pages(pages)
        with closed_meanwhile():
            return self._transfers.match(pages, self._open_call(Gate()))

    def save(
        self,
        pages: Sequence[str],
        slots: Tables,
        *,
        start: int = 0,
        endpoints: Iterable[int] | None = None,
    ) -> SaveReport:
        """Store the pages that the store lacks and this rank is to write.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages lie in the pool; by component name if there are several. A row
                of -1 is a page that the component does not hold, as behind a sliding window. A
                state's slot may stand for all pages where ``endpoints`` leave one of them.
            start: position of ``pages[0]`` in its sequence, in pages.
            endpoints: pages (1 is behind the first of the call) at which the sequence shall be
                restorable; of windows and state only what these need is stored. None: all.

        Raises:
            GridError: this rank owns a chunk only in part; nothing is written.
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is written.
            SpecError: endpoints that are none, or that the pages do not reach; nothing is written.
            StoreError: the client is closed, or was made before this process was forked.
        """
        selections, start = self._to_store(pages, slots, start, endpoints)
        call, transfers = self._open_call(Gate()), self._transfers
        turn = transfers.turns.enter(selections, writes=False)
        with closed_meanwhile():
            return transfers.save(pages, selections, start, call, turn)

    def save_async(
        self,
        pages: Sequence[str],
        slots: Tables,
        *,
        start: int = 0,
        endpoints: Iterable[int] | None = None,
        after: After = None,
    ) -> SaveTicket:
        """Do as `save`, on another thread; nothing is waited for here.

        Where the arena has no room just now, pages are dropped: the report's ``failed`` names
        them, and `meters` count them.

        Args:
            pages: as for `save`.
            slots: as for `save`; the slots must stay as they are until ``source_free()``.
            start: as for `save`.
            endpoints: as for `save`.
            after: what writes the pages, if that is still to end: a `torch.cuda.Event` that was
                recorded behind it, a `threading.Event`, or the like.

        Raises: as `save`.
        """
        check_after(after)
        selections, start = self._to_store(pages, slots, start, endpoints)
        pages, transfers, ticket = list(pages), self._transfers, SaveTicket()
        call = self._open_call(ticket.gate)
        turn = transfers.turns.enter(selections, writes=False)
        ticket.gate.when_shut(turn.leave)
        comes = partial(wait_for, after, call.deadline, call.gate, self._movers.asleep)
        save = partial(transfers.save, comes=comes, packed=ticket.packed, wait=False)

        def work() -> SaveReport:
            return save(pages, selections, start, call, turn)

        if not self._submit(ticket, work, turn.leave):
            ticket.carry_out(lambda: transfers.drop(pages, selections, TOO_MANY))
        return ticket

    def load(self, pages: Sequence[str], slots: Tables) -> LoadReport:
        """Fill the pools with the greatest prefix of ``pages`` that is stored and verifies.

        Args:
            pages: page hashes in sequence order.
            slots: where the pages go in the pool; by component name if there are several. A row
                of -1 is a page that the component has no place for, as outside a sliding window.
                For state one slot may stand for all pages: only one state is restored.

        What is stored wrong or not at all ends the prefix and is told in the report; the slots
        of the pages behind it are left as they were. (Where the load is larger than its staging
        and windows or state end the prefix early, pages of other components between the two may
        have been written: the report's ``pages`` is what counts.)

        Raises:
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit the pages or the pool; nothing is read.
            StoreError: the client is closed, or was made before this process was forked.
        """
        selections = self._selector.select(pages, slots, write=True)
        call, transfers = self._open_call(Gate()), self._transfers
        turn = transfers.turns.enter(selections, writes=True)
        with closed_meanwhile():
            return transfers.load(pages, selections, call, turn, load_pages)

    def load_async(
        self, pages: Sequence[str], slots: Tables, *, after: After = None, stream: bool = False
    ) -> LoadTicket:
        """Do as `load`, on another thread; nothing is waited for here.

        Args:
            pages: as for `load`.
            slots: as for `load`; the slots are the load's until the ticket is done or cancelled.
            after: what still uses the slots, if anything does; see `save_async`.
            stream: fill the pool layer by layer as ranges arrive, see `LoadTicket.wait_layer`.
                Then a failure fails the whole load, and all of it must fit the arena at once.

        Raises: as `load`; and `SpecError` where no component of a stream needs every page.
        """
        check_after(after)
        check_switches(stream=stream)
        selections = self._selector.select(pages, slots, write=True)
        pages, transfers = list(pages), self._transfers
        first = streamed_leg(self._lanes) if stream else self._lanes[0]
        ticket = LoadTicket(first.pool.layers, stream=stream)
        loader = stream_pages(ticket.layers_ready) if stream else load_pages
        call = self._open_call(ticket.gate)
        turn = transfers.turns.enter(selections, writes=True)
        ticket.gate.when_shut(turn.leave)
        comes = partial(wait_for, after, call.deadline, call.gate, self._movers.asleep)

        def work() -> LoadReport:
            return transfers.load(pages, selections, call, turn, loader, comes=comes, whole=stream)

        if not self._submit(ticket, work, turn.leave):
            ticket.carry_out(lambda: LoadReport(stopped=TOO_MANY))
        return ticket

    def prefetch(self, pages: Sequence[str], slots: Tables | None = None) -> PrefetchTicket:
        """Bring what is stored of ``pages`` into the arena, for a later load to take over.

        No pool is touched. Nothing is held while the store is asked what it has. Where the arena
        has no room the report says ``deferred``, which is no miss; saves and loads that want room
        drop what is prefetched, the oldest first.

        Args:
            pages: page hashes in sequence order.
            slots: where a later load will put them: wanted only where pages are dealt out over
                ranks (cp > 1), since a rank's own follow from them.

        Raises:
            KeyFormatError: a text that is no page hash.
            PoolError: slots that do not fit, or none where they are wanted.
            StoreError: the client is closed, or was made before this process was forked.
        """
        if slots is None:
            check_pages(pages)
            sharded = next((lane.name for lane in self._lanes if lane.shard.ranks > 1), None)
            if sharded is not None:
                raise PoolError(
                    f"prefetch of component {sharded!r}, whose pages are dealt out over ranks: "
                    "want slots, from which this rank's own follow"
                )
            rows: list[Sequence[int]] = [range(len(pages))] * len(self._lanes)
        else:
            rows = [some.rows for some in self._selector.select(pages, slots, write=True)]
        pages, transfers, ticket = list(pages), self._transfers, PrefetchTicket()
        call = self._open_call(ticket.gate)

        def work() -> PrefetchReport:
            return transfers.prefetch(pages, rows, call)

        if not self._submit(ticket, work):
            ticket.carry_out(lambda: PrefetchReport(deferred=True, stopped=TOO_MANY))
        return ticket

    def _to_store(
        self, pages: Sequence[str], slots: Tables, start: int, endpoints: Iterable[int] | None
    ) -> tuple[list[Selection], int]:
        """Check the input of a save; return what each lane stores of it, and the start."""
        chosen = self._selector.select(pages, slots, write=False)
        start, wanted = check_start(start, len(pages)), check_endpoints(endpoints)
        selections = [
            lane.to_store(selection, wanted, len(pages))
            for lane, selection in zip(self._lanes, chosen, strict=True)
        ]
        for lane in self._lanes:
            lane.passage.write  # noqa: B018 - raises where the rank owns a part of a chunk
        return selections, start

    def _open_call(self, gate: Gate) -> StoreCall:
        """Return the store for one call, whose deadline begins now."""
        if os.getpid() != self._pid:
            raise StoreError(
                f"this client was made in process {self._pid}, and threads and I/O do not outlive "
                f"a fork: make a new client in process {os.getpid()}"
            )
        if self._closing.closed:
            raise StoreError("this client is closed")
        return self._transfers.open_call(monotonic() + self._deadline_s, gate)

    def _submit(
        self,
        ticket: Ticket[Any],  # Any: its report
        work: Callable[[], Any],
        last: Callable[[], None] = lambda: None,
    ) -> bool:
        """Have a ticket carried out, and ``last`` called whatever comes of it."""

        def job() -> None:
            ticket.carry_out(work)
            last()

        if self._movers.submit(job):
            return True
        last()
        return False


def _let_go(transfers: Transfers, movers: Movers) -> None:
    movers.close()
    transfers.close()
