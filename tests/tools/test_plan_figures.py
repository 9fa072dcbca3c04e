"""What a grid costs each deployment: figures by hand, and sums that hold for any fleet."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings

from tests.tools.plans import (
    DEEPSEEK,
    HYBRID,
    LLAMA,
    PRICES,
    SMOL,
    fleet,
    fleets,
    model,
    plan,
    refusal,
)
from unikv import Client, PagedCache, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.fleet import Deployment
from unikv.namespace import CODECS
from unikv.spec import KVSpec
from unikv.tools.plan_choice import make_plan
from unikv.tools.plan_figures import DeploymentFigures, PlanFigures, Prices

GRID = "tp4,pp2 tp2 tp8,dcp2:16"


def test_bytes_a_token_are_those_of_the_models_cards() -> None:
    assert plan(LLAMA, "tp1").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert plan(SMOL, "tp1").kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert plan(DEEPSEEK, "tp1").kv_bytes_per_token == 61 * 576 * 2
    assert plan(HYBRID, "tp1").kv_bytes_per_token == 2 * 8 * 4 * 128 * 2


def test_objects_have_header_payload_and_description() -> None:
    figures = plan(LLAMA, GRID)
    [one] = figures.objects
    assert (one.layers, one.objects) == (40, 32)
    assert one.payload_bytes == 40 * 32 * 2 * 128 * 2  # layers, tokens, K and V, dim, bytes
    assert one.header_bytes % 512 == 0
    assert one.description_bytes > figures.namespace_text_bytes
    assert one.object_bytes == one.header_bytes + one.payload_bytes + one.description_bytes
    assert figures.stored_bytes_per_page == 32 * one.object_bytes
    assert figures.payload_bytes_per_page == 32 * one.payload_bytes == 64 * 327_680


def test_objects_of_uneven_cuts_are_told_apart() -> None:
    figures = plan(DEEPSEEK, "tp1,pp4:16-15-15-15")
    assert [(one.layers, one.objects) for one in figures.objects] == [(16, 1), (15, 3)]


@pytest.mark.parametrize(
    ("at", "objects", "ranks", "alone"), [(0, 4, 8, 8), (1, 16, 2, 2), (2, 2, 16, 16)]
)
def test_writers_own_whole_objects_and_read_them_with_one_request_each(
    at: int, objects: int, ranks: int, alone: int
) -> None:
    one = plan(LLAMA, GRID).deployments[at]
    assert {(rank.objects, rank.gets) for rank in one.by_rank} == {(objects, objects)}
    assert (one.puts, one.gets, one.ranks) == (32, 32, ranks)
    assert one.own_grid
    assert one.own_grid.chunks_per_page == alone
    assert one.read_amplification == one.worst_read_amplification == 1


def test_a_reader_of_other_heads_reads_its_neighbours_too() -> None:
    spec = KVSpec.mha(layers=4, kv_heads=12, head_dim=64, dtype="bfloat16", page_tokens=16)
    reader = plan(spec, "tp6", "tp4").deployments[1]
    assert not reader.writes
    assert (reader.puts, reader.own_grid) == (0, None)
    assert {(rank.objects, rank.gets) for rank in reader.by_rank} == {(2, 2)}
    assert reader.read_amplification == pytest.approx(4 / 3)
    reader = plan(spec, "tp3", "tp4").deployments[1]  # chunks of 4 heads, shares of 3
    assert [rank.objects for rank in reader.by_rank] == [1, 2, 2, 1]
    assert reader.read_amplification == pytest.approx(24 / 12)
    assert reader.worst_read_amplification == pytest.approx(8 / 3)


def test_a_reader_of_other_stages_asks_for_header_and_slabs_apart() -> None:
    reader = plan(SMOL, "tp1", "tp1,pp2").deployments[1]
    assert [(rank.objects, rank.gets) for rank in reader.by_rank] == [(1, 1), (1, 2)]
    assert reader.read_amplification == 1
    header = plan(SMOL, "tp1").objects[0].header_bytes
    assert reader.fetched_bytes - reader.read_bytes == 2 * header


def test_B100_replicas_write_once_and_read_each_for_itself() -> None:
    one = plan(DEEPSEEK, "tp4,cp2").deployments[0]
    assert (one.ranks, one.replicas, one.page_ranks) == (8, 4, 2)
    assert (one.puts, one.gets) == (1, 4)
    assert one.needed_bytes == 4 * DEEPSEEK.page_bytes
    assert sorted(rank.replica for rank in one.by_rank) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_B84_ranks_with_other_tokens_are_no_replicas() -> None:
    one = plan(DEEPSEEK, "tp4,dcp2").deployments[0]
    assert (one.ranks, one.replicas, one.puts, one.gets) == (8, 4, 2, 8)
    one = plan(LLAMA, "tp16,dcp2").deployments[0]
    assert (one.ranks, one.replicas, one.puts, one.gets) == (32, 2, 16, 32)


def test_owners_are_those_of_each_axis() -> None:
    figures = plan(LLAMA, GRID, "tp16")
    a, b, c, d = (one.owners for one in figures.deployments)
    assert a.pp == ((0,), (1,))
    assert a.tp == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))
    assert (b.pp, b.tp[3:5]) == (((0,), (0,)), ((0,), (1,)))
    assert (a.dcp, c.dcp) == (((0,), (0,)), ((0,), (1,)))
    assert d.tp[-1] == (14, 15)


def test_a_prompt_is_stored_in_whole_pages() -> None:
    prompt = plan(LLAMA, GRID, "tp16", tokens=100_000).prompt
    assert (prompt.pages, prompt.stored_tokens) == (1562, 99_968)
    assert prompt.objects == prompt.puts == 1562 * 32
    assert prompt.put_cost == pytest.approx(1562 * 32 * 0.005 / 1000)
    assert prompt.stored_bytes == 1562 * plan(LLAMA, GRID).stored_bytes_per_page
    assert prompt.storage_cost_per_month == pytest.approx(prompt.stored_bytes / 10**9 * 0.023)
    assert [load.gets for load in prompt.loads] == [1562 * gets for gets in (32, 32, 32, 64)]
    assert prompt.loads[3].get_cost == pytest.approx(1562 * 64 * 0.0004 / 1000)
    assert plan(LLAMA, GRID, tokens=63).prompt.objects == 0


def test_a_fleet_without_a_grid_has_reasons_and_a_neighbour() -> None:
    found = refusal(LLAMA, "tp5,pp3 tp4", "tp2,dcp3")
    assert [one.topology for one in found.reasons] == ["tp5,pp3", "tp2,pp1,dcp3"]
    assert found.nearest
    assert found.nearest.deploy == ("tp4,pp3:27-27-26", "tp4,pp1")
    assert found.nearest.read_only == ("tp2,pp1,dcp3",)
    assert found.nearest.page_tokens == 66
    assert found.nearest.grid.chunks_per_page == 3 * 4 * 3
    assert found.as_json()["ok"] is False


def test_a_text_that_is_too_long_is_a_reason_of_the_whole_fleet() -> None:
    spec = KVSpec.mha(layers=500, kv_heads=1, head_dim=1, dtype="int8", page_tokens=4)
    found = refusal(spec, "tp1,pp500 tp1,pp2")
    [reason] = found.reasons
    assert reason.topology is None
    assert "want at most 4000" in reason.reason
    assert found.nearest
    assert found.nearest.changes == ("without tp1,pp500",)


def test_too_many_chunks_are_a_reason_of_the_whole_fleet() -> None:
    spec = KVSpec.mha(layers=300, kv_heads=300, head_dim=1, dtype="int8", page_tokens=4)
    [reason] = refusal(spec, "tp1,pp300 tp300").reasons
    assert (reason.topology, "90000 chunks" in reason.reason) == (None, True)


@settings(max_examples=40)
@given(fleets())
def test_the_figures_of_any_fleet_add_up(drawn: tuple[KVSpec, list[Deployment]]) -> None:
    spec, some = drawn
    figures = make_plan(model(spec), some, 1000, Prices(1, 1, 1))
    assert isinstance(figures, PlanFigures)
    chunks = figures.grid.chunks_per_page
    assert sum(one.objects for one in figures.objects) == chunks
    assert sum(one.objects * one.payload_bytes for one in figures.objects) == spec.page_bytes
    for one in figures.deployments:
        _adds_up(one, spec, chunks)


def _adds_up(one: DeploymentFigures, spec: KVSpec, chunks: int) -> None:
    assert len(one.by_rank) == one.ranks
    assert one.needed_bytes == one.replicas * spec.page_bytes
    assert one.needed_bytes <= one.read_bytes < one.fetched_bytes
    assert one.worst_read_amplification >= one.read_amplification >= 1
    assert one.puts == (chunks if one.writes else 0)
    assert one.gets >= chunks * one.replicas
    if one.writes:
        assert (one.gets, one.read_amplification) == (chunks * one.replicas, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_load_asks_for_what_the_plan_tells(codec: str) -> None:
    """Of a codec that shrinks what it can: zeros here."""
    spec = KVSpec.mha(layers=4, kv_heads=4, head_dim=64, dtype="bfloat16", page_tokens=16)
    texts = ("tp2", "tp1,pp2")  # who writes, and who only reads
    found = make_plan(model(spec, codec=codec), fleet(*texts), 160, PRICES)
    assert isinstance(found, PlanFigures)
    made: dict[str, Any] = {}
    exec(found.snippet, made)
    store, pages = MemoryStore(), page_hashes(range(160), 16)
    slots = torch.arange(160).view(10, 16)
    for text, told in zip(texts, found.deployments, strict=True):
        for rank, one in zip(Topology.parse(text).ranks(), told.by_rank, strict=True):
            layers, heads = (stop - start for start, stop in (one.layers, one.heads))
            kv = ([torch.zeros(160, heads, 64).bfloat16() for _ in range(layers)] for _ in "kv")
            with Client(store, made["namespace"], rank, PagedCache.slots(*kv)) as client:
                if told.writes:
                    assert client.save(pages, slots).ok
                    continue
                report = client.load(pages, slots)
            assert report.pages == 10
            assert report.requests == 10 * one.gets
            fetched, most = report.bytes_read, 10 * one.fetched_bytes
            assert fetched == most if codec == "none" else fetched < most
