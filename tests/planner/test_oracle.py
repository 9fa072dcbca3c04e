"""Oracle: a page's bytes by DESIGN's words alone, and every plan of every topology against it.

Each byte of a page has a number of its own, so a byte in a wrong place always shows.
"""

from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from unikv.errors import GridError
from unikv.geometry import Box, Interval, Phase
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat
from unikv.planner import Plan, plan_read, plan_write
from unikv.spec import KVSpec, StatePart
from unikv.topology import Topology

Numbers: TypeAlias = NDArray[np.int32]
Owns: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # layers and heads of a rank
Copy: TypeAlias = tuple[int, tuple[int, list[int], slice], NDArray[np.int64]]
POISON, HEADER, TEXT = -1, -2, -3
PAGE = "5f" * 32


# The oracle: plain loops over (head group, layer, part, token, head, byte). No unikv in it.
class Facts(NamedTuple):
    layers: int
    heads: int
    parts: tuple[tuple[int, int], ...]  # (rows, bytes of a row and head): K and V of a layer
    headed: bool
    cuts: tuple[int, ...]
    group_heads: int
    phases: int
    interleave: int


@cache
def numbered(facts: Facts) -> tuple[Numbers, ...]:
    """Return [layer, row, head, byte] of each part: all bytes of a page, each its own number."""
    arrays: list[Numbers] = []
    begin = 0
    for rows, width in facts.parts:
        shape = (facts.layers, rows, facts.heads, width)
        size = facts.layers * rows * facts.heads * width
        arrays.append(np.arange(begin, begin + size, dtype=np.int32).reshape(shape))
        begin += size
    return tuple(arrays)


@cache
def payloads(facts: Facts) -> dict[str, Numbers]:
    """Return the payload of every object of a page, by the end of the object's key."""
    found: dict[str, Numbers] = {}
    page = [part.tolist() for part in numbered(facts)]
    for group in range(facts.heads // facts.group_heads):
        for start, stop in pairwise(facts.cuts):
            for phase in range(facts.phases):
                payload: list[int] = []
                for layer in range(start, stop):
                    for part in page:
                        for token, row in enumerate(part[layer]):
                            if token // facts.interleave % facts.phases == phase:
                                for head, values in enumerate(row):
                                    if head // facts.group_heads == group:
                                        payload += values
                name = f"L{start}-{stop}" + (f"_H{group}" if facts.headed else "")
                name += f"_T{phase}" if facts.phases > 1 else ""
                found[name] = np.array(payload, dtype=np.int32)
    return found


def heads_of(rank: int, tp: int, heads: int) -> tuple[int, ...]:
    """Return the heads of a tensor rank: shares of heads, or shares of ranks that hold one."""
    if tp <= heads:
        return tuple(head for head in range(heads) if head * tp // heads == rank)
    return tuple(head for head in range(heads) if rank * heads // tp == head)


def layers_of(stage: int, table: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
    ends = list(accumulate(table))
    stages = [next(n for n, end in enumerate(ends) if layer < end) for layer in ids]
    return tuple(ordinal for ordinal, home in enumerate(stages) if home == stage)


def pool_of(facts: Facts, owns: Owns, phase: Phase) -> list[Numbers]:
    """Return the pool of a rank, one [layer, row, head, byte] array a part."""
    layers, heads = owns
    pool: list[Numbers] = []
    for part in numbered(facts):
        rows = range(part.shape[1])
        tokens = [t for t in rows if t // phase.interleave % phase.count == phase.index]
        pool.append(part[np.ix_(layers, tokens, heads)])
    return pool


def held(facts: Facts, owns: Owns, phase: Phase) -> set[int]:
    """Return the numbers of all bytes that a rank holds."""
    return {number for part in pool_of(facts, owns, phase) for number in part.ravel().tolist()}


# Carrying out plans, one copy at a time, on poisoned memory.
def copies(plan: Plan, pool: list[Numbers]) -> list[Copy]:
    """Return (part, where in its pool, where in staging) of each piece."""
    found: list[Copy] = []
    for piece in plan.pieces:
        _, all_rows, _, width = pool[piece.part].shape
        rows = piece.phase.tokens(all_rows)
        at = np.add.outer(np.arange(len(rows)) * piece.row_bytes, np.arange(piece.heads * width))
        at = piece.offset + at.reshape(len(rows), piece.heads, width)
        where = (piece.layer, rows, slice(piece.head, piece.head + piece.heads))
        found.append((piece.part, where, at))
    return found


def read(fmt: ObjectFormat, plan: Plan, objects: dict[str, Numbers], pool: list[Numbers]) -> None:
    """Fill a poisoned pool from objects as the plan says; no byte may be filled twice."""
    staging = np.full(plan.page_bytes, POISON, dtype=np.int32)
    keys, moved = plan.keys([PAGE]), 0
    for key, start, stop, place in zip(*plan.expand(1), strict=True):
        stored = objects[keys[key]]
        assert 0 <= start < stop <= stored.size
        assert (staging[place : place + stop - start] == POISON).all()
        staging[place : place + stop - start] = stored[start:stop]
        moved += stop - start
    for place in plan.place:
        assert place % 512 == 0
        assert (staging[place : place + fmt.header_bytes] == HEADER).all()
    assert moved == plan.read + len(keys) * fmt.header_bytes
    for part, where, at in copies(plan, pool):
        assert (pool[part][where] == POISON).all()
        pool[part][where] = staging[at]


def write(fmt: ObjectFormat, plan: Plan, pool: list[Numbers]) -> dict[str, Numbers]:
    """Return the objects that a pool gives, header and payload, with no byte left poisoned."""
    staging = np.full(plan.page_bytes, POISON, dtype=np.int32)
    for part, where, at in copies(plan, pool):
        assert (staging[at] == POISON).all()
        staging[at] = pool[part][where]
    objects: dict[str, Numbers] = {}
    for key, start, stop, place in zip(*plan.expand(1), strict=True):
        assert start == 0
        assert (staging[place : place + fmt.header_bytes] == POISON).all()
        staging[place : place + fmt.header_bytes] = HEADER
        objects[plan.keys([PAGE])[key]] = staging[place : place + stop]
    return objects


@cache
def stored(fmt: ObjectFormat, facts: Facts) -> dict[str, Numbers]:
    """Return the oracle's objects: a header, the payload, a description."""
    header, text = np.full(fmt.header_bytes, HEADER), np.full(99, TEXT)
    return {
        f"{PAGE}_{fmt.namespace.digest}_{name}": np.concatenate([header, payload, text])
        for name, payload in payloads(facts).items()
    }


@cache
def check_read(fmt: ObjectFormat, facts: Facts, box: Box, owns: Owns) -> None:
    want = pool_of(facts, owns, box.phase)
    pool = [np.full_like(part, POISON) for part in want]
    plan = plan_read(fmt, box)
    read(fmt, plan, stored(fmt, facts), pool)
    assert all(np.array_equal(a, b) for a, b in zip(pool, want, strict=True))
    assert plan.needed == sum(part.size for part in want)
    mine = held(facts, owns, box.phase)
    touched = sum(not mine.isdisjoint(payload.tolist()) for payload in payloads(facts).values())
    assert len(plan.chunks) == touched


@cache
def check_write(fmt: ObjectFormat, facts: Facts, box: Box, owns: Owns) -> frozenset[str] | None:
    """Return the keys written, after comparing their bytes; None where the plan is refused."""
    mine = held(facts, owns, box.phase)
    whole = {
        f"{PAGE}_{fmt.namespace.digest}_{name}": payload
        for name, payload in payloads(facts).items()
        if mine.issuperset(payload.tolist())
    }
    if sum(payload.size for payload in whole.values()) < len(mine):
        with pytest.raises(GridError, match="Grids that fit"):
            plan_write(fmt, box)
        return None
    plan = plan_write(fmt, box)
    objects = write(fmt, plan, pool_of(facts, owns, box.phase))
    assert objects.keys() == whole.keys()
    for key, payload in whole.items():
        assert np.array_equal(objects[key][fmt.header_bytes :], payload)
    assert plan.needed == plan.read == len(mine)
    return frozenset(objects)


# Models, cut in several ways, under every topology that they allow.
def facts_of(ns: Namespace) -> Facts:
    spec = ns.spec
    parts = tuple((part.rows, part.width) for part in spec.parts)
    grid = (ns.layer_cuts, ns.heads_per_chunk, ns.phases, ns.interleave)
    return Facts(spec.layers, spec.kv_heads, parts, spec.has_heads, *grid)


def mha(layers: int, heads: int, v_dim: int = 4, ids: range | None = None) -> KVSpec:
    return KVSpec.mha(
        layers=layers,
        kv_heads=heads,
        head_dim=4,
        v_head_dim=v_dim,
        dtype="int8",
        page_tokens=4,
        layer_ids=ids,
    )


MODELS = {
    "mha 8 heads 61 layers": mha(61, 8),
    "gqa 3 heads 30 layers": mha(30, 3),
    "one head": mha(6, 1),
    "mla 61 layers": KVSpec.mla(layers=61, dim=5, dtype="bfloat16", page_tokens=5),
    "K and V of different dims": mha(12, 6, v_dim=3),
    "hybrid": mha(8, 4, ids=range(3, 32, 4)),
    "rows": KVSpec.rows(layers=12, row_bytes=7, rows_per_page=3, page_tokens=8),
    "state": KVSpec.state(
        layers=12,
        groups=4,
        page_tokens=8,
        parts=[StatePart("conv", "float32", (8, 3)), StatePart("ssm", "int8", (4, 3, 3))],
    ),
}
STAGES = {
    61: [(61,), (31, 30), (20, 22, 19), (16, 15, 15, 15)],
    30: [(30,), (15, 15), (11, 10, 9), (8, 8, 7, 7)],
    6: [(6,), (3, 3), (1, 3, 2), (2, 1, 2, 1)],
    12: [(12,), (6, 6), (5, 4, 3), (3, 3, 3, 3)],
    32: [(32,), (16, 16), (13, 2, 17), (3, 14, 8, 7)],  # of the hybrid's model: two hold none of it
}


@cache
def formats(name: str, table: tuple[int, ...], tp: int) -> list[ObjectFormat]:
    """Return grids that fit the stages and shares, are finer, are coarser, and end in a rest."""
    spec = MODELS[name]
    inside = [len(layers_of(stage, table, spec.layer_ids)) for stage in range(len(table))]
    aligned = tuple(sorted({0, *accumulate(inside)}))
    share = max(1, spec.kv_heads // tp)
    ragged = spec.layers // 2 + 1
    return [
        fmt_of(spec, aligned, share),
        fmt_of(spec, tuple(range(spec.layers + 1)), 1),
        fmt_of(spec, (0, spec.layers), spec.kv_heads),
        fmt_of(spec, tuple(sorted({0, ragged, spec.layers})), share),
    ]


@cache
def fmt_of(
    spec: KVSpec, cuts: tuple[int, ...], heads: int, phases: int = 1, interleave: int = 1
) -> ObjectFormat:
    namespace = Namespace(
        spec=spec,
        model="oracle",
        weights="unversioned",
        rope="none",
        layer_cuts=cuts,
        heads_per_chunk=heads,
        phases=phases,
        interleave=interleave,
    )
    return ObjectFormat.of(namespace)


FITTING = [  # test_topology.py has the error of the others
    (name, tp)
    for name, spec in MODELS.items()
    for tp in (1, 2, 3, 4, 6, 8, 16)
    if spec.kv_heads % tp == 0 or tp % spec.kv_heads == 0
]


@pytest.mark.parametrize("stages", range(4), ids=["pp1", "pp2", "pp3 uneven", "pp4"])
@pytest.mark.parametrize(("name", "tp"), FITTING, ids=[f"{name} tp{tp}" for name, tp in FITTING])
def test_B10_B57_B100_every_topology_moves_its_own_bytes_and_no_other(
    name: str, stages: int, tp: int
) -> None:
    spec = MODELS[name]
    table = STAGES[spec.layer_ids[-1] + 1][stages]
    topology = Topology(tp=tp, pp=len(table), pp_layers=table)
    for fmt in formats(name, table, tp):
        facts = facts_of(fmt.namespace)
        first: list[str] = []
        striped: list[str] = []
        refused = False
        for rank in topology.ranks():
            owns = (layers_of(rank.pp, table, spec.layer_ids), heads_of(rank.tp, tp, spec.kv_heads))
            box = rank.box(spec)
            assert owned(box) == owns
            check_read(fmt, facts, box, owns)
            written = check_write(fmt, facts, box, owns)
            index, count = rank.replica(spec)
            refused |= written is None
            first += written or () if index == 0 else ()
            striped += written or () if int(PAGE[:16], 16) % count == index else ()
        if not refused:  # then every chunk of the page has one writer (B83, B84)
            everything = sorted(stored(fmt, facts))
            assert sorted(first) == everything
            assert sorted(striped) == everything
        else:
            assert fmt is not formats(name, table, tp)[0]


def owned(box: Box) -> Owns:
    layers, heads = box.layers, box.heads
    return tuple(range(layers.start, layers.stop)), tuple(range(heads.start, heads.stop))


def move(spec: KVSpec, cuts: tuple[int, ...], heads: int, writer: str, reader: str) -> None:
    """Write one page by every rank of one topology, read it by every rank of another."""
    fmt = fmt_of(spec, cuts, heads)
    facts = facts_of(fmt.namespace)
    objects: dict[str, Numbers] = {}
    for rank in Topology.parse(writer).ranks():
        box = rank.box(spec)
        made = write(fmt, plan_write(fmt, box), pool_of(facts, owned(box), box.phase))
        for key, data in made.items():
            assert np.array_equal(objects.setdefault(key, data), data)  # whoever writes it
    for rank in Topology.parse(reader).ranks():
        box = rank.box(spec)
        want = pool_of(facts, owned(box), box.phase)
        pool = [np.full_like(part, POISON) for part in want]
        read(fmt, plan_read(fmt, box), objects, pool)
        assert all(np.array_equal(a, b) for a, b in zip(pool, want, strict=True))


@pytest.mark.parametrize("reader", ["tp1,pp1", "tp2,pp4:10-11-12-11", "tp4,pp2:21-23"])
@pytest.mark.parametrize("cuts", [(0, 21, 44), tuple(range(45))], ids=["by stage", "by layer"])
def test_B12_pages_of_uneven_stages_are_read_by_any_other_stages(
    cuts: tuple[int, ...], reader: str
) -> None:
    move(mha(44, 4), cuts, 2, "tp2,pp2:21-23", reader)


@pytest.mark.parametrize("writer", ["tp1", "tp2", "tp4"])
@pytest.mark.parametrize("reader", ["tp1", "tp2", "tp4", "tp8"])
def test_B15_every_pair_of_replicated_heads_is_exact(writer: str, reader: str) -> None:
    move(mha(2, 2), (0, 2), 1, writer, reader)


@st.composite
def odd_models(draw: st.DrawFn) -> ObjectFormat:
    layers, heads = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    phases, interleave = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (2, 3), (6, 1), (3, 2)]))
    tokens = phases * interleave * draw(st.integers(1, 2))
    spec = KVSpec.mha(
        layers=layers,
        kv_heads=heads,
        head_dim=draw(st.integers(1, 5)),
        v_head_dim=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(["int8", "bfloat16"])),
        page_tokens=tokens,
    )
    cuts = draw(st.sets(st.integers(0, layers))) | {0, layers}
    group = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    return fmt_of(spec, tuple(sorted(cuts)), group, phases, interleave)


@given(odd_models(), st.data())
def test_any_box_of_any_model_reads_itself_and_writes_only_whole_chunks(
    fmt: ObjectFormat, data: st.DataObject
) -> None:
    facts = facts_of(fmt.namespace)
    count = data.draw(
        st.sampled_from([n for n in range(1, facts.phases + 1) if facts.phases % n == 0])
    )
    phase = Phase(data.draw(st.integers(0, count - 1)), count, facts.interleave)
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, facts.layers)] * 2)))
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, facts.heads)] * 2)))
    box = Box(Interval(first, last), Interval(low, high), phase)
    check_read(fmt, facts, box, owned(box))
    check_write(fmt, facts, box, owned(box))
