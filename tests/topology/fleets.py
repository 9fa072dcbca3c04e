"""Fleets: all ranks of a deployment, and saves and loads of a path by each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch

from tests.topology.oracle import (
    Cost,
    Cut,
    Deployment,
    Holding,
    Model,
    Seat,
    allocate,
    copies,
    cost,
    holding,
    objects,
    seats,
    sharers,
)
from tests.topology.pools import Layout, Pool, spec_of
from unikv import Client, Component, Namespace, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.reports import LoadReport, SaveReport
from unikv.store import Store
from unikv.topology import Rank

STAGING = 8 << 20


@cache
def namespace_of(model: Model, cut: Cut, **fields: Any) -> Namespace:
    return Namespace(
        spec=spec_of(model),
        weights="unversioned",
        model="fleet",
        rope="none",
        component=f"part{model.component}" if model.component else "target",
        layer_cuts=cut.layers,
        heads_per_chunk=cut.heads,
        phases=cut.phases,
        interleave=cut.interleave,
        **fields,
    )


@cache
def path_of(pages: int, page_tokens: int) -> list[str]:
    return page_hashes(range(7, 7 + pages * page_tokens), page_tokens)


def rank_of(deployment: Deployment, seat: Seat) -> Rank:
    topology = Topology(
        tp=deployment.tp,
        pp=max(1, len(deployment.stages)),
        cp=deployment.cp,
        dcp=deployment.dcp,
        pp_layers=deployment.stages or None,
        dcp_interleave=deployment.interleave,
    )
    return topology.rank(tp=seat.tp, pp=seat.pp, cp=seat.cp, dcp=seat.dcp)


@dataclass
class Member:
    """One rank at work: its pool and its client."""

    seat: Seat
    pool: Pool
    client: Client

    name: str  # of the component

    @property
    def held(self) -> Holding:
        return self.pool.held

    def slots(self, first: int = 0, stop: int | None = None) -> dict[str, torch.Tensor]:
        return {self.name: self.pool.table[first:stop]}

    def save(self, path: Sequence[str], first: int = 0) -> SaveReport:
        """Save the pages of ``path``, which begin at page ``first`` of the world's."""
        return self.client.save(path, self.slots(first, first + len(path)), start=first)

    def load(self, path: Sequence[str], first: int = 0) -> LoadReport:
        return self.client.load(path, self.slots(first, first + len(path)))


@dataclass(frozen=True)
class World:
    """A model, the grid that its deployments store by, and a path of pages."""

    model: Model
    cut: Cut
    pages: int = 4
    fields: tuple[tuple[str, Any], ...] = ()  # others of the namespace

    @property
    def namespace(self) -> Namespace:
        return namespace_of(self.model, self.cut, **dict(self.fields))

    @property
    def path(self) -> list[str]:
        return path_of(self.pages, self.model.page)

    @cached_property
    def objects(self) -> dict[str, bytes]:
        """What a store holds once the path is saved."""
        return objects(self.model, self.cut, self.namespace, self.path)

    def pool(
        self,
        deployment: Deployment,
        seat: Seat,
        *,
        layout: Layout = "slots",
        rotation: int = 0,
        seed: int = 0,
    ) -> Pool:
        ranks = sharers(self.model, deployment)
        held = holding(self.model, deployment, seat, self.pages, rotation)
        own = seed if ranks > 1 else seed + hash(seat)  # those who share pages see one table
        whole = layout != "slots"
        places, slots = allocate(
            self.pages, len(held.rows), ranks, rotation, own % 2**32, whole=whole
        )
        return Pool(self.model, held, places, slots, layout)

    def member(
        self,
        store: Store,
        deployment: Deployment,
        seat: Seat,
        *,
        layout: Layout = "slots",
        rotation: int = 0,
        seed: int = 0,
        filled: bool = False,
        **options: Any,
    ) -> Member:
        pool = self.pool(deployment, seat, layout=layout, rotation=rotation, seed=seed)
        if filled:
            pool.fill(range(self.pages))
        component = Component(self.namespace, pool.cache, deployment.sharded)
        options = {"staging_bytes": STAGING, **options}
        name = self.namespace.component
        client = Client(store, {name: component}, rank_of(deployment, seat), **options)
        return Member(seat, pool, client, name)

    def fleet(self, store: Store, deployment: Deployment, **options: Any) -> list[Member]:
        return [self.member(store, deployment, seat, **options) for seat in seats(deployment)]

    def save(self, store: Store, deployment: Deployment, **options: Any) -> list[SaveReport]:
        """Save the path as every rank, one after the other."""
        reports = []
        for member in self.fleet(store, deployment, filled=True, **options):
            reports.append(member.save(self.path))
            assert reports[-1].ok
        return reports

    def save_at_once(self, deployment: Deployment, **options: Any) -> dict[str, bytes]:
        """Return what all ranks store when none sees what another does; no object comes twice.

        Each is checked against what it should have written.
        """
        found: dict[str, bytes] = {}
        shares = copies(self.model, deployment)
        for seat in seats(deployment):
            store = MemoryStore()
            member = self.member(store, deployment, seat, filled=True, **options)
            report = member.save(self.path)
            made = contents(store)
            hint = {key: made.pop(key) for key in list(made) if key.startswith("ns_")}
            index, count = shares[seat]
            turns = {page: int(self.path[page][:16], 16) % count for page in member.held.pages}
            if options.get("writers") == "first":
                turns = dict.fromkeys(turns, 0)
            mine = [page for page, turn in turns.items() if turn == index]
            assert report.ok
            assert (report.stored, report.existed) == (len(made), 0)
            assert report.bytes_written == sum(map(len, made.values()))
            assert report.pages == (len(mine) if member.held.layers else 0)
            assert {key[:64] for key in made} <= {self.path[page] for page in mine}
            assert not made.keys() & found.keys()
            found |= made | hint
        return found

    def load(
        self, store: Store, deployment: Deployment, pages: int | None = None, **options: Any
    ) -> list[tuple[Member, LoadReport]]:
        """Load the path as every rank into poison, where ``pages`` pages are stored.

        Each gets the pages up to the first of its own that is not stored, and no byte else.
        """
        stored = self.pages if pages is None else pages
        loaded = []
        for member in self.fleet(store, deployment, **{"seed": 1, **options}):
            report = member.load(self.path)
            lacking = [page for page in member.held.pages if page >= stored]
            wanted = lacking[0] if lacking and member.held.layers else self.pages
            assert report.pages == wanted, (member.seat, report.stopped)
            assert (report.stopped is None) == (wanted == self.pages)
            assert member.pool.holds(range(wanted)), member.seat
            loaded.append((member, report))
        return loaded

    def check_cost(self, member: Member, report: LoadReport, cut: Cut | None = None) -> None:
        """Check a whole load's figures, read by the grid ``cut``, against the oracle's."""
        wanted = cost(self.model, cut or self.cut, member.held)
        header = len(self.objects) and report.bytes_headers // max(1, wanted.headers)
        payload = report.bytes_read - report.bytes_headers
        found = Cost(report.requests, wanted.headers, payload, report.bytes_needed)
        assert found == wanted
        assert header % 512 == 0
        assert report.bytes_headers == header * wanted.headers


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {key: data for key, (data, _) in store._objects.items()}


def filled_store(world: World) -> MemoryStore:
    """Return a store that holds what the oracle says, put there by nobody's client."""
    store = MemoryStore()
    store._objects.update({key: (data, 0.0) for key, data in world.objects.items()})
    return store
