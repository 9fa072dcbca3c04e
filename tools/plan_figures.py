"""Plan figures: what a grid costs each deployment of a fleet. It chooses no grid, prints nothing.

Every number of an object, a range or a rank comes from the object format, the planner and the
topology; here they are only added up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from unikv.canonical import Json
from unikv.cut import Cut
from unikv.fleet import Deployment, common_cut
from unikv.geometry import Box
from unikv.grid import Grid
from unikv.objects import ObjectFormat
from unikv.planner import Plan, plan_read, plan_write
from unikv.spec import KVSpec
from unikv.topology import Rank

GB = 10**9
"""Bytes by which storage is priced."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What an object store asks for, in any currency."""

    put: float  # of 1,000 requests
    get: float  # of 1,000 requests
    storage: float  # of 10**9 bytes for a month


@dataclass(frozen=True, slots=True)
class GridFigures:
    """A cut of pages into chunks."""

    layer_cuts: tuple[int, ...]
    heads_per_chunk: int
    phases: int
    interleave: int
    chunks_per_page: int


@dataclass(frozen=True, slots=True)
class ObjectFigures:
    """The objects of a page that have equally many layers; these are all of one size."""

    layers: int
    objects: int  # a page
    header_bytes: int
    payload_bytes: int
    description_bytes: int
    object_bytes: int  # of one, all three together


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What one rank does for a page that it owns."""

    tp: int
    pp: int
    cp: int
    dcp: int
    layers: tuple[int, int]  # ordinals of the component, half-open
    heads: tuple[int, int]
    replica: int  # which one of those that hold the same bytes
    replicas: int
    objects: int  # that it touches
    gets: int  # requests of a load
    needed_bytes: int  # payload that its pool takes
    read_bytes: int  # payload that it reads
    fetched_bytes: int  # headers too


@dataclass(frozen=True, slots=True)
class Owners:
    """Which ranks of a deployment hold a part of each layer cut, head group and token phase."""

    pp: tuple[tuple[int, ...], ...]
    tp: tuple[tuple[int, ...], ...]
    dcp: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class DeploymentFigures:
    """What all ranks of a deployment do for one page."""

    topology: str
    writes: bool
    ranks: int
    replicas: int  # ranks that hold the same bytes
    page_ranks: int  # ranks that own pages in turn
    own_grid: GridFigures | None  # the coarsest if nobody else wrote; None for who only reads
    puts: int  # requests of a save, by all ranks; 0 for who only reads
    gets: int  # requests of a load, by all ranks
    needed_bytes: int
    read_bytes: int
    fetched_bytes: int
    read_amplification: float  # read_bytes / needed_bytes
    worst_read_amplification: float  # of one rank
    owners: Owners
    by_rank: tuple[RankFigures, ...]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a deployment asks of the store for one load of a prompt."""

    topology: str
    gets: int
    fetched_bytes: int
    get_cost: float


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """What one prompt comes to: whole pages are stored, the tokens behind them are not."""

    tokens: int
    pages: int
    stored_tokens: int
    objects: int
    stored_bytes: int
    puts: int
    put_cost: float
    storage_cost_per_month: float
    loads: tuple[LoadFigures, ...]


@dataclass(frozen=True, slots=True)
class Warn:
    """Something that is not as it could be: a code for programs, a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """All that `unikv plan` tells of a fleet with a common grid."""

    model: str
    component: str
    weights: str
    placeholders: tuple[str, ...]
    spec: dict[str, Json]
    codec: str  # other than "none": all stored and fetched bytes are upper bounds
    kv_bytes_per_token: float
    grid: GridFigures
    objects: tuple[ObjectFigures, ...]
    payload_bytes_per_page: int
    stored_bytes_per_page: int
    namespace_text_bytes: int
    deployments: tuple[DeploymentFigures, ...]
    prompt: PromptFigures
    prices: Prices
    warnings: tuple[Warn, ...]
    snippet: str

    def as_json(self) -> dict[str, object]:
        """Return the figures as values that `json` writes; docs/plan.md names every field."""
        return {"ok": True, **asdict(self)}


def grid_of(spec: KVSpec, cut: Cut) -> GridFigures:
    """Return a cut with the chunks that it makes."""
    return GridFigures(**cut._asdict(), chunks_per_page=len(Grid(spec, *cut).chunks))


def objects_of(form: ObjectFormat) -> tuple[ObjectFigures, ...]:
    """Return the objects of a page by size, the largest first."""
    chunks = sorted(form.grid.chunks, key=lambda chunk: -chunk.slabs)
    return tuple(
        ObjectFigures(
            layers=slabs,
            objects=1 + len(rest),
            header_bytes=form.header_bytes,
            payload_bytes=first.payload_bytes,
            description_bytes=form.object_bytes(first) - form.header_bytes - first.payload_bytes,
            object_bytes=form.object_bytes(first),
        )
        for slabs, (first, *rest) in groupby(chunks, key=lambda chunk: chunk.slabs)
    )


def deployment_of(form: ObjectFormat, deployment: Deployment) -> DeploymentFigures:
    """Return what a deployment does for a page of the fleet's namespace.

    Raises:
        GridError: the deployment writes, and a rank of it does not own whole chunks.
    """
    topology, spec = deployment.topology, form.namespace.spec
    plans = dict[Box, Plan]()
    ranks = topology.ranks()
    figures, puts = list[RankFigures](), 0
    for rank in ranks:
        box = rank.box(spec)
        if box not in plans:
            plans[box] = (plan_write if deployment.writes else plan_read)(form, box)
        found = _rank(rank, form, plans[box])
        figures.append(found)
        if deployment.writes and found.replica == 0 and rank.shard(spec).rank == 0:
            puts += found.objects
    # Of each page one rank among those that own pages in turn has work; all turns are alike.
    busy = [one for rank, one in zip(ranks, figures, strict=True) if rank.shard(spec).rank == 0]
    needed, read = sum(one.needed_bytes for one in busy), sum(one.read_bytes for one in busy)
    return DeploymentFigures(
        topology=str(topology),
        writes=deployment.writes,
        ranks=len(ranks),
        replicas=ranks[0].replica(spec)[1],
        page_ranks=ranks[0].shard(spec).ranks,
        own_grid=grid_of(spec, common_cut(spec, [deployment])) if deployment.writes else None,
        puts=puts,
        gets=sum(one.gets for one in busy),
        needed_bytes=needed,
        read_bytes=read,
        fetched_bytes=sum(one.fetched_bytes for one in busy),
        read_amplification=read / needed,
        worst_read_amplification=max(
            one.read_bytes / one.needed_bytes for one in busy if one.needed_bytes
        ),
        owners=_owners(form, deployment),
        by_rank=tuple(figures),
    )


def prompt_of(
    form: ObjectFormat, deployments: Sequence[DeploymentFigures], tokens: int, prices: Prices
) -> PromptFigures:
    """Return what a prompt comes to: saved once, and loaded once by each deployment."""
    page_tokens = form.namespace.spec.page_tokens
    pages, chunks = tokens // page_tokens, form.grid.chunks
    stored = pages * sum(form.object_bytes(chunk) for chunk in chunks)
    puts = pages * max(one.puts for one in deployments)  # writers all write whole pages
    return PromptFigures(
        tokens=tokens,
        pages=pages,
        stored_tokens=pages * page_tokens,
        objects=pages * len(chunks),
        stored_bytes=stored,
        puts=puts,
        put_cost=puts * prices.put / 1000,
        storage_cost_per_month=stored * prices.storage / GB,
        loads=tuple(
            LoadFigures(
                topology=one.topology,
                gets=pages * one.gets,
                fetched_bytes=pages * one.fetched_bytes,
                get_cost=pages * one.gets * prices.get / 1000,
            )
            for one in deployments
        ),
    )


def _rank(rank: Rank, form: ObjectFormat, plan: Plan) -> RankFigures:
    spec = form.namespace.spec
    box, (replica, replicas) = rank.box(spec), rank.replica(spec)
    return RankFigures(
        tp=rank.tp,
        pp=rank.pp,
        cp=rank.cp,
        dcp=rank.dcp,
        layers=(box.layers.start, box.layers.stop),
        heads=(box.heads.start, box.heads.stop),
        replica=replica,
        replicas=replicas,
        objects=len(plan.chunks),
        # Of a coded object the header is read first, since it alone tells where the slabs lie.
        gets=len(plan.spans.key) if form.codec is None else 2 * len(plan.chunks),
        needed_bytes=plan.needed,
        read_bytes=plan.read,
        fetched_bytes=int((plan.spans.stop - plan.spans.start).sum()),
    )


def _owners(form: ObjectFormat, deployment: Deployment) -> Owners:
    grid, topology = form.grid, deployment.topology
    spec, phases, cuts = grid.spec, grid.phases, grid.cuts
    stages = [Rank(topology, pp=pp).box(spec).layers for pp in range(topology.pp)]
    shares = [Rank(topology, tp=tp).box(spec).heads for tp in range(topology.tp)]
    held = [
        grid.covering_phases(Rank(topology, dcp=dcp).box(spec).phase) for dcp in range(topology.dcp)
    ]
    layers = [chunk.layers for chunk in grid.chunks[: cuts * phases : phases]]
    heads = [chunk.heads for chunk in grid.chunks[:: cuts * phases]]
    return Owners(
        pp=tuple(tuple(_where((stage & cut).size for stage in stages)) for cut in layers),
        tp=tuple(tuple(_where((share & group).size for share in shares)) for group in heads),
        dcp=tuple(tuple(_where(phase in some for some in held)) for phase in range(phases)),
    )


def _where(flags: Iterator[int]) -> Iterator[int]:
    return (index for index, flag in enumerate(flags) if flag)
