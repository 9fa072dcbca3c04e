"""Demo grid: the coarsest cut that suits both sides, and who touches which cell."""

import pytest

from unikv import KVSpec, Namespace, Topology
from unikv.grid import Grid
from unikv.objects import ObjectFormat
from unikv.planner import plan_read, plan_write
from unikv.tools.demo_grid import choose_grid, fill_cells, is_aligned
from unikv.tools.demo_job import Answer, Done, Job

SPEC = KVSpec.mha(layers=30, kv_heads=6, head_dim=4, dtype="bfloat16", page_tokens=16)


def namespace_of(cuts: tuple[int, ...], heads: int) -> Namespace:
    return Namespace(
        spec=SPEC,
        weights="unversioned",
        model="grid",
        rope="none",
        layer_cuts=cuts,
        heads_per_chunk=heads,
    )


@pytest.mark.parametrize(
    ("write", "read", "cuts", "heads"),
    [
        ("tp1", "tp1", (0, 30), 6),
        ("tp3,pp2", "tp1", (0, 15, 30), 2),
        ("tp2", "tp3", (0, 30), 1),
        ("pp2", "tp3,pp3:11-10-9", (0, 11, 15, 21, 30), 2),
        ("pp3", "pp2", (0, 10, 15, 20, 30), 6),
        ("tp12", "tp1", (0, 30), 1),
    ],
)
def test_the_cut_is_the_coarsest_by_which_both_sides_own_whole_chunks(
    write: str, read: str, cuts: tuple[int, ...], heads: int
) -> None:
    sides = Topology.parse(write), Topology.parse(read)
    choice = choose_grid(SPEC, *sides)
    assert (choice.layer_cuts, choice.heads_per_chunk) == (cuts, heads)
    form = ObjectFormat.of(namespace_of(cuts, heads))
    for side in sides:
        for rank in side.ranks():
            plan = plan_write(form, rank.box(SPEC))
            assert plan.read == plan.needed
            assert is_aligned(form.grid, rank.box(SPEC))


def test_settings_that_are_given_win_and_the_reason_says_so() -> None:
    sides = Topology.parse("tp3,pp2"), Topology.parse("tp1")
    choice = choose_grid(SPEC, *sides, layers_per_chunk=7, heads_per_chunk=3)
    assert choice.layer_cuts == (0, 7, 14, 21, 28, 30)
    assert choice.heads_per_chunk == 3
    assert "layers and heads" in choice.reason
    assert "tp3,pp2" in choose_grid(SPEC, *sides).reason


def test_a_reader_is_aligned_just_when_it_reads_nothing_but_its_own() -> None:
    for heads in (1, 2, 3, 6):
        form = ObjectFormat.of(namespace_of((0, 15, 30), heads))
        for topology in ("tp1", "tp2", "tp3", "tp6,pp3:11-10-9"):
            for rank in Topology.parse(topology).ranks():
                box = rank.box(SPEC)
                plan = plan_read(form, box)
                assert is_aligned(form.grid, box) == (plan.read == plan.needed)


def test_each_cell_names_who_wrote_and_who_read_it() -> None:
    namespace = namespace_of((0, 15, 30), 2)

    def done(topology: str) -> list[Done]:
        ranks = Topology.parse(topology).ranks()
        return [
            Done(
                Job("read", namespace.canonical.decode(), topology, r.tp, r.pp, "", (), "", 0),
                Answer(),
            )
            for r in ranks
        ]

    cells = fill_cells(Grid.of(namespace), done("tp3,pp2"), done("tp1,pp3"))
    assert [cell.chunk for cell in cells] == [
        f"L{layers}_H{group}" for group in range(3) for layers in ("0-15", "15-30")
    ]
    assert [cell.wrote for cell in cells] == [(f"tp{t} pp{p}",) for t in range(3) for p in range(2)]
    assert [cell.read for cell in cells] == [("tp0 pp0", "tp0 pp1"), ("tp0 pp1", "tp0 pp2")] * 3
