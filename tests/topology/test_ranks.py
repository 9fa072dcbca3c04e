"""Ranks: what each rank of every deployment holds, owns and writes, against the oracle's axes."""

from collections import Counter

import pytest

from tests.topology.fleets import path_of, rank_of
from tests.topology.models import MODELS, chosen_deployments, deploy, every_deployment, meetings
from tests.topology.oracle import Deployment, Model, copies, holding, seats, sharers
from tests.topology.pools import spec_of
from unikv import KVSpec, Topology
from unikv.spec import StatePart

PAGES = 12
LATENTS = Model(4, 0, (2,))
INDEXER = Model(4, 0, (2,), rows=1)


def check_ranks(model: Model, deployment: Deployment) -> None:
    spec = spec_of(model)
    shares = copies(model, deployment)
    held_by: Counter[tuple[int, int, int]] = Counter()
    for seat in seats(deployment):
        rank = rank_of(deployment, seat)
        held = holding(model, deployment, seat, PAGES, 0)
        box = rank.box(spec)
        assert tuple(range(box.layers.start, box.layers.stop)) == held.layers
        assert tuple(range(box.heads.start, box.heads.stop)) == held.heads
        assert tuple(box.phase.tokens(model.page_rows)) == held.rows
        shard = rank.shard(spec, deployment.sharded)
        assert shard.ranks == sharers(model, deployment)
        mine = [page for page in range(PAGES) if page % shard.ranks == shard.rank]
        assert tuple(mine) == held.pages
        index, count = rank.replica(spec, deployment.sharded)
        if held.layers:  # who holds nothing is no copy of anybody
            assert (index, count) == shares[seat]
            if index == 0:
                cells = len(held.layers) * len(held.heads) * len(held.rows)
                held_by.update((cells, page, count) for page in held.pages)
    # Replicas 0 together hold every (layer, head, row) of every page once.
    whole = model.layers * max(1, model.heads) * model.page_rows
    for page in range(PAGES):
        assert sum(c * n for (c, at, _), n in held_by.items() if at == page) == whole


@pytest.mark.parametrize("name", MODELS)
def test_B83_B84_every_rank_of_every_deployment_holds_what_the_axes_say(name: str) -> None:
    deployments = every_deployment(name)
    assert len(deployments) >= 3 * 4 * 4 * 3
    for deployment in deployments:
        check_ranks(MODELS[name], deployment)


@pytest.mark.parametrize("model", [LATENTS, INDEXER], ids=["latents", "rows of pages"])
@pytest.mark.parametrize("sharded", [True, False, None])
def test_components_are_dealt_out_or_replicated_as_asked(
    model: Model,
    sharded: bool | None,  # noqa: FBT001 - a case
) -> None:
    for tp in (1, 2, 4, 16):
        for cp in (1, 2, 3):
            for dcp in (1, 2):
                if sharded and (tp, cp) == (1, 1):
                    continue  # nobody holds copies: an error, see test_bad_input
                check_ranks(model, Deployment(tp, (), cp, dcp, 1, sharded))


def test_states_are_replicated_over_decode_ranks_and_dealt_out_over_context_ranks() -> None:
    conv = StatePart("conv", "float32", (8, 3))
    spec = KVSpec.state(layers=2, parts=[conv], page_tokens=4, groups=4)
    ranks = Topology(tp=8, cp=3, dcp=2).ranks()
    assert {rank.box(spec).phase.count for rank in ranks} == {1}
    assert {rank.shard(spec) for rank in ranks} == {(r, 3) for r in range(3)}
    groups = Counter((rank.box(spec).heads.start, rank.cp) for rank in ranks)
    assert set(groups.values()) == {4}  # two tensor ranks, two decode ranks
    found = {(rank.box(spec).heads.start, rank.cp, rank.replica(spec)) for rank in ranks}
    assert len(found) == len(ranks)
    assert {rank.replica(spec)[1] for rank in ranks} == {4}


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].layers <= 12])
def test_the_chosen_deployments_pair_every_size_with_every_other(name: str) -> None:
    every, chosen = (
        set[object]().union(*map(meetings, some(name)))
        for some in (every_deployment, chosen_deployments)
    )
    assert every == chosen


def test_B11_rotation_moves_pages_from_rank_to_rank_and_nothing_else() -> None:
    model, deployment = LATENTS, deploy("one head", 1, (), 3, 1)
    for rotation in range(3):
        owned = [holding(model, deployment, s, PAGES, rotation).pages for s in seats(deployment)]
        assert sorted(sum(owned, ())) == list(range(PAGES))
        assert owned[rotation][0] == 0
    assert len(path_of(PAGES, model.page)) == PAGES
