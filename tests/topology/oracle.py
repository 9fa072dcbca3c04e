"""Oracle: a path's objects and every rank's pool, by DESIGN's axes alone. It knows no planner.

One array holds the KV of all pages, and each number in it says where it belongs. Objects and pools
are picks of that array; of unikv it asks only the header and description around a payload.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise, product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unikv import Namespace
from unikv.hints import encode_hint, hint_key
from unikv.objects import ObjectFormat

Numbers: TypeAlias = NDArray[np.int32]
Table: TypeAlias = NDArray[np.int64]

POISON = -7
_DIGITS = (4, 64, 2, 8, 1024, 64)  # component, layer, K or V, head, token of the path, dim


@dataclass(frozen=True)
class Model:
    """The axes of one component: int32 everywhere, ``dims`` of K and V or of one latent."""

    layers: int
    heads: int  # 0 for kinds without
    dims: tuple[int, ...]
    page: int = 16  # tokens of a page
    rows: int = 0  # rows of a page where they do not follow tokens
    ids: tuple[int, ...] = ()  # model layers, where they are not 0, 1, 2...
    component: int = 0

    @property
    def page_rows(self) -> int:
        return self.rows or self.page

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.ids or tuple(range(self.layers))


class Cut(NamedTuple):
    """A grid: layer cuts, heads of a group, token phases and their interleave."""

    layers: tuple[int, ...]
    heads: int = 1
    phases: int = 1
    interleave: int = 1


class Deployment(NamedTuple):
    """Sizes of the parallel axes; ``stages`` are model layers of each pipeline stage."""

    tp: int = 1
    stages: tuple[int, ...] = ()
    cp: int = 1
    dcp: int = 1
    interleave: int = 1
    sharded: bool | None = None  # as of `Component`

    def __str__(self) -> str:
        pp = "-".join(map(str, self.stages)) or "1"
        mode = {None: "", True: " sharded", False: " replicated"}[self.sharded]
        return f"tp{self.tp} pp{pp} cp{self.cp} dcp{self.dcp}:{self.interleave}{mode}"


class Seat(NamedTuple):
    """One rank of a deployment."""

    pp: int
    cp: int
    dcp: int
    tp: int


class Holding(NamedTuple):
    """What one rank holds of a path, in global numbers, ascending."""

    layers: tuple[int, ...]  # ordinals
    heads: tuple[int, ...]
    rows: tuple[int, ...]  # of a page: tokens, where rows follow them
    pages: tuple[int, ...]  # positions in the path


def seats(deployment: Deployment) -> list[Seat]:
    stages = max(1, len(deployment.stages))
    axes = map(range, (stages, deployment.cp, deployment.dcp, deployment.tp))
    return [Seat(*seat) for seat in product(*axes)]


def sharers(model: Model, deployment: Deployment) -> int:
    """Over how many ranks the pages are dealt out."""
    if deployment.sharded is False:
        return 1
    latents = deployment.sharded and not model.heads
    return deployment.cp if deployment.cp > 1 else deployment.tp if latents else 1


@cache
def holding(model: Model, deployment: Deployment, seat: Seat, pages: int, rotation: int) -> Holding:
    heads, tp = max(1, model.heads), deployment.tp
    if heads >= tp:
        held = [h for h in range(heads) if h // (heads // tp) == seat.tp]
    else:
        held = [seat.tp // (tp // heads)]
    ends = list(accumulate(deployment.stages)) or [model.layer_ids[-1] + 1]
    homes = [next(n for n, end in enumerate(ends) if layer < end) for layer in model.layer_ids]
    rows = range(model.page_rows)
    if not model.rows:  # else all rows are on every rank
        dealt = [t // deployment.interleave % deployment.dcp for t in rows]
        rows_held = [t for t in rows if dealt[t] == seat.dcp]
    else:
        rows_held = list(rows)
    ranks = sharers(model, deployment)
    turn = seat.cp if deployment.cp > 1 else seat.tp
    mine = [p for p in range(pages) if ranks == 1 or (rotation + p) % ranks == turn]
    layers = [ordinal for ordinal, home in enumerate(homes) if home == seat.pp]
    return Holding(tuple(layers), tuple(held), tuple(rows_held), tuple(mine))


@cache
def copies(model: Model, deployment: Deployment, pages: int = 48) -> dict[Seat, tuple[int, int]]:
    """Return (index, count) of each rank among those that hold the same, in order of seats."""
    alike: dict[Holding, list[Seat]] = {}
    for seat in seats(deployment):
        alike.setdefault(holding(model, deployment, seat, pages, 0), []).append(seat)
    return {
        seat: (index, len(group))
        for group in alike.values()
        for index, seat in enumerate(sorted(group, key=lambda s: (s.tp, s.cp, s.dcp)))
    }


@cache
def numbers(model: Model, pages: int) -> tuple[Numbers, ...]:
    """Return [layer, page, row, head, dim] of each part; each number tells its own place."""
    found = []
    for part, dim in enumerate(model.dims):
        shape = (model.layers, pages, model.page_rows, max(1, model.heads), dim)
        layer, page, row, head, at = np.indices(shape, dtype=np.int32, sparse=True)
        place = (model.component + 1, layer, part, head, page * model.page_rows + row, at)
        value: Numbers = np.zeros(shape, dtype=np.int32)
        for digit, base in zip(place, _DIGITS, strict=True):
            value = value * np.int32(base) + np.asarray(digit, dtype=np.int32)
        value.flags.writeable = False
        found.append(value)
    return tuple(found)


def places(values: Numbers) -> NDArray[np.int64]:
    """Return what `numbers` put into each value: a row (component, layer, part, head, row, dim)."""
    rest, columns = values.astype(np.int64).ravel(), list[NDArray[np.int64]]()
    for base in reversed(_DIGITS):
        columns.append(rest % base)
        rest = rest // base
    columns[-1] = columns[-1] - 1
    return np.stack(columns[::-1], axis=1)


@dataclass(frozen=True)
class Cell:
    """One chunk of a grid: which layers, heads and rows of a page it holds."""

    suffix: str
    layers: range
    heads: range
    rows: tuple[int, ...]


@cache
def cells(model: Model, cut: Cut) -> tuple[Cell, ...]:
    found = []
    for group in range(max(1, model.heads) // cut.heads):
        for start, stop in pairwise(cut.layers):
            for phase in range(cut.phases):
                name = f"L{start}-{stop}" + (f"_H{group}" if model.heads else "")
                name += f"_T{phase}" if cut.phases > 1 else ""
                rows = range(model.page_rows)
                held = tuple(t for t in rows if t // cut.interleave % cut.phases == phase)
                heads = range(group * cut.heads, (group + 1) * cut.heads)
                found.append(Cell(name, range(start, stop), heads, held))
    return tuple(found)


def payload(model: Model, cell: Cell, pages: int, page: int) -> bytes:
    """Return (layer, K/V, row, head in group, dim) of one chunk."""
    slabs = [
        part[cell.layers.start : cell.layers.stop, page][:, cell.rows][:, :, cell.heads]
        for part in numbers(model, pages)
    ]
    return np.concatenate([slab.reshape(len(slab), -1) for slab in slabs], axis=1).tobytes()


def objects(
    model: Model, cut: Cut, namespace: Namespace, path: Sequence[str], start: int = 0
) -> dict[str, bytes]:
    """Return every object of a path from page ``start`` on, by key, and the hint record."""
    form = ObjectFormat.of(namespace)
    chunks = {chunk.suffix: chunk for chunk in form.grid.chunks}
    digest, family = namespace.digest, namespace.family
    found = {hint_key(family, 0): encode_hint(namespace, 0)}
    for page, name in list(enumerate(path))[start:]:
        for cell in cells(model, cut):
            body = payload(model, cell, len(path), page)
            parent = path[page - 1] if page > start else None
            head, text = form.encode(
                name, chunks[cell.suffix], body, parent=parent, page_index=page
            )
            found[f"{name}_{digest}_{cell.suffix}"] = head + body + text
    return found


def shares(cell: Cell, held: Holding) -> bool:
    """Tell whether a rank holds any byte of a chunk."""
    axes = ((cell.layers, held.layers), (cell.heads, held.heads), (cell.rows, held.rows))
    return all(set(a) & set(b) for a, b in axes)


class Cost(NamedTuple):
    """What a load of whole pages asks of a store, and the payload bytes that its rank holds."""

    requests: int = 0
    headers: int = 0
    payload: int = 0
    needed: int = 0


def cost(model: Model, cut: Cut, held: Holding) -> Cost:
    """Return what a rank reads by a grid: of each chunk that it shares, the slabs of its layers."""
    requests = headers = read = 0
    for cell in cells(model, cut):
        if shares(cell, held):
            layers = [layer for layer in cell.layers if layer in held.layers]
            headers += 1
            requests += 1 if layers[0] == cell.layers[0] else 2
            read += len(layers) * len(cell.rows) * len(cell.heads) * sum(model.dims) * 4
    box = len(held.layers) * len(held.heads) * len(held.rows) * sum(model.dims) * 4
    return Cost(*(n * len(held.pages) for n in (requests, headers, read, box)))


@dataclass
class Places:
    """Where the pages of a path lie: a table of slots, logical where ranks share pages out."""

    table: Table  # (pages, rows of a page on one rank)
    ranks: int
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = self.table.shape[1]

    def local(self, page: int) -> Table:
        """Return the rows of a page in the pool of its owner, slot by slot."""
        rows = [
            slot // self.width // self.ranks * self.width + slot % self.width
            for slot in self.table[page].tolist()
        ]
        return np.array(rows if self.ranks > 1 else self.table[page], dtype=np.int64)


def allocate(
    pages: int, width: int, ranks: int, rotation: int, seed: int, *, whole: bool = False
) -> tuple[Places, int]:
    """Return places for a path, and the slots of one rank's pool, spare ones among them.

    Ranks that share pages out give page P a logical page of owner (rotation + P) mod ranks, at
    random; its slots stand in any order. Else slots are random. ``whole`` keeps pages in order,
    as block tables need.
    """
    rng = np.random.default_rng(seed)
    rounds = -(-pages // ranks) + 2
    if ranks == 1 and not whole:
        slots = rounds * width
        return Places(rng.permutation(slots)[: pages * width].reshape(pages, width), 1), slots
    free = [list(rng.permutation(rounds)) for _ in range(ranks)]
    table = []
    for page in range(pages):
        rank = (rotation + page) % ranks
        logical = int(free[rank].pop()) * ranks + rank
        order = np.arange(width) if whole else rng.permutation(width)
        table.append(logical * width + order)
    return Places(np.array(table, dtype=np.int64).reshape(pages, width), ranks), rounds * width
