"""Bytes of components on the field's reports, by id: segments of state, scales, wide rows."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.components.bundle_content import Model
from tests.components.bundle_models import HYBRID, MODELS, SCALED
from tests.components.bundles import contents, filled_store, world_of
from unikv import Client, Component, KVSpec, Namespace, PagedCache, Topology, page_hashes
from unikv.backends.memory import MemoryStore
from unikv.coverage import Window
from unikv.errors import PoolError, SpecError
from unikv.objects import ObjectFormat, parse_header
from unikv.regions import Region
from unikv.spec import StatePart

ALONE = Topology().rank()
SEGMENTS = (8, 8, 16)
CHANNELS = torch.tensor([100 * n + i for n, size in enumerate(SEGMENTS) for i in range(size)])


def namespace(spec: KVSpec, name: str = "target", **fields: Any) -> Namespace:
    fields = {"weights": "unversioned", "model": "case", "rope": "none", **fields}
    return Namespace(spec=spec, component=name, **fields)


def conv(tp: int, rank: int, fill: int | None = None) -> tuple[dict[str, Any], torch.Tensor]:
    """Return a client's component of one conv state, and its tensor of 2 slots."""
    part = StatePart("conv", "int16", (32,), SEGMENTS)
    spec = KVSpec.state(layers=1, parts=[part], page_tokens=4, groups=4)
    mine, start = [], 0
    for size in SEGMENTS:
        share = size // tp
        mine.append(CHANNELS[start + rank * share : start + (rank + 1) * share])
        start += size
    row = torch.cat(mine).to(torch.int16)
    tensor = torch.full((2, len(row)), -1, dtype=torch.int16)
    if fill is not None:
        tensor[fill] = row
    pool = PagedCache.states(spec, {"conv": [tensor]})
    return {"state": Component(namespace(spec, "state", heads_per_chunk=1), pool)}, tensor


@pytest.mark.parametrize("writers", [1, 2, 4])
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_B16_each_segment_of_a_conv_state_is_cut_by_itself(writers: int, readers: int) -> None:
    store, pages = MemoryStore(), page_hashes(range(4), 4)
    for rank in Topology(tp=writers).ranks():
        components, _ = conv(writers, rank.tp, fill=1)
        Client(store, components, rank).save(pages, {"state": [[1]]})
    for rank in Topology(tp=readers).ranks():
        components, tensor = conv(readers, rank.tp)
        _, right = conv(readers, rank.tp, fill=0)
        assert Client(store, components, rank).load(pages, {"state": 0}).pages == 1
        assert torch.equal(tensor, right)
    if readers == 4:
        assert tensor[0].tolist() == [6, 7, 106, 107, 212, 213, 214, 215]


def scaled(scale: int, **fields: Any) -> tuple[dict[str, Component], list[torch.Tensor]]:
    """Return fp8 KV with a scale for each token and head, and the scale tensors."""
    target = KVSpec.mha(layers=1, kv_heads=2, head_dim=32, dtype="float8_e4m3fn", page_tokens=4)
    scales = KVSpec.mha(layers=1, kv_heads=2, head_dim=1, dtype="float32", page_tokens=4)
    kv = [torch.ones(12, 2, 32).to(torch.float8_e4m3fn) for _ in range(2)]
    rows = [torch.full((12, 2, 1), float(scale)) for _ in range(2)]
    return {
        "target": Component(
            namespace(target, quant="fp8 per head"), PagedCache.slots(kv[:1], kv[1:])
        ),
        "scales": Component(
            namespace(scales, "scales"),
            PagedCache.slots(rows[:1], rows[1:]),
            **{"source": "target", **fields},
        ),
    }, rows


def test_B17_scales_come_back_with_what_they_scale() -> None:
    store, pages = MemoryStore(), page_hashes(range(8), 4)
    slots = torch.tensor([[3, 1, 2, 0], [11, 10, 8, 9]])
    Client(store, scaled(7)[0], ALONE).save(pages, slots)
    components, rows = scaled(99)
    assert Client(store, components, ALONE).load(pages, slots).pages == 2
    for tensor in rows:
        assert (tensor[slots] == 7).all()
        assert (tensor[4:8] == 99).all()


def test_B17_without_its_scales_no_page_is_restored() -> None:
    world, store = world_of(SCALED), filled_store(SCALED)
    digest = world.namespaces["scales"].digest
    store.delete([key for key in contents(store) if digest in key])
    party = world.party(store, ALONE)
    assert (party.client.match(world.path).pages, party.load().pages) == (0, 0)
    assert party.holds(dict.fromkeys(SCALED.caches, ())) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"need": "optional"},
        {"source": None},
        {"coverage": Window(4)},
    ],
    ids=["optional", "of another", "of fewer pages"],
)
def test_B17_quantised_bytes_whose_scales_may_stay_behind_are_refused(
    wrong: Mapping[str, Any],
) -> None:
    with pytest.raises(SpecError, match="'target' has quant='fp8 per head' and its scales are no"):
        Client(MemoryStore(), scaled(7, **wrong)[0], ALONE)


def test_B17_an_indexer_that_follows_quantised_kv_is_not_its_scales() -> None:
    components = scaled(7)[0]
    spec = components["scales"].spec
    pool = components["scales"].pool
    indexer = Component(namespace(spec, "indexer"), pool, source="target")
    with pytest.raises(SpecError, match=r"a required component 'scales' .* source='target'"):
        Client(MemoryStore(), {"target": components["target"], "indexer": indexer}, ALONE)


def test_B17_fixed_scales_are_named_by_their_digest() -> None:
    target = scaled(7)[0]["target"]
    fixed = namespace(target.spec, quant="fp8 per head", scales="a digest")
    Client(MemoryStore(), {"target": Component(fixed, target.pool)}, ALONE)


def rows_of(width: int, layout: str) -> tuple[PagedCache, torch.Tensor]:
    """Return a pool of 16 rows of ``width`` bytes, and its bytes as (16, width)."""
    whole = torch.zeros(16, width, dtype=torch.uint8)
    if layout == "slots":
        return PagedCache.rows([whole]), whole
    if layout == "blocks":
        return PagedCache.rows([whole.view(4, 4, width)]), whole
    region = Region(0, (16, 1, 1, width), (width, width, width))
    return PagedCache.packed(whole.view(-1), [[region]], dtype="uint8"), whole


@pytest.mark.parametrize("layout", ["slots", "blocks", "allocation"])
def test_B18_rows_move_as_wide_as_they_are_stored(layout: str) -> None:
    spec = KVSpec.rows(layers=1, row_bytes=528, rows_per_page=4, page_tokens=4)  # 512 and scales
    store, pages = MemoryStore(), page_hashes(range(8), 4)
    pool, memory = rows_of(528, layout)
    memory[:] = (torch.arange(16 * 528) % 251).view(16, 528).to(torch.uint8)
    slots = torch.arange(4, 12).view(2, 4)
    Client(store, namespace(spec), ALONE, pool).save(pages, slots)
    back, restored = rows_of(528, layout)
    assert Client(store, namespace(spec), ALONE, back).load(pages, slots).pages == 2
    assert torch.equal(restored[4:12], memory[4:12])
    assert not restored[:4].any()
    assert not restored[12:].any()


@pytest.mark.parametrize("layout", ["slots", "blocks", "allocation"])
def test_B18_a_spec_narrower_than_the_pools_rows_is_refused(layout: str) -> None:
    spec = KVSpec.rows(layers=1, row_bytes=512, rows_per_page=4, page_tokens=4)
    with pytest.raises(PoolError, match="row rows of 528 bytes: want 512"):
        Client(MemoryStore(), namespace(spec), ALONE, rows_of(528, layout)[0])


@pytest.mark.parametrize("page", [1, 64])
def test_B20_an_indexer_row_is_a_page_and_its_neighbours_stay(page: int) -> None:
    width = page * 128 + page * 4
    kv = KVSpec.mla(layers=1, dim=2, dtype="uint8", page_tokens=page)
    index = KVSpec.rows(layers=1, row_bytes=width, rows_per_page=1, page_tokens=page)
    store, pages = MemoryStore(), page_hashes(range(2 * page), page)

    def client(*, fill: bool) -> tuple[Client, torch.Tensor]:
        latents = torch.zeros(6 * page, 2, dtype=torch.uint8)
        rows = torch.full((6, width), 99, dtype=torch.uint8)
        if fill:
            rows[3], rows[1] = 30, 10
        return Client(
            store,
            {
                "target": Component(namespace(kv), PagedCache.rows([latents])),
                "indexer": Component(
                    namespace(index, "indexer"), PagedCache.rows([rows]), source="target"
                ),
            },
            ALONE,
        ), rows

    def slots(*blocks: int) -> torch.Tensor:
        return torch.tensor(blocks)[:, None] * page + torch.arange(page)

    client(fill=True)[0].save(pages, slots(3, 1))
    reader, rows = client(fill=False)
    assert reader.load(pages, slots(4, 2)).pages == 2
    assert rows[:, 0].tolist() == rows[:, -1].tolist() == [99, 99, 10, 99, 30, 99]
    if page > 1:
        with pytest.raises(PoolError, match="'indexer', with 1 rows a page, cannot follow it"):
            reader.load(pages, slots(4, 2) + 1)


def test_B31_every_part_of_a_state_comes_back_whatever_its_dtype() -> None:
    spec = HYBRID.caches["state"].spec
    assert {part.dtype for part in spec.state_parts} == {"bfloat16", "float32", "int64"}
    party = world_of(HYBRID).party(filled_store(HYBRID), ALONE)
    assert party.load().pages == HYBRID.pages
    assert party.holds({"target": range(6), "state": (5,)}) == []


def test_B31_a_part_more_is_another_component_and_old_states_miss() -> None:
    world, store = world_of(HYBRID), filled_store(HYBRID)
    spec = HYBRID.caches["state"].spec
    more = KVSpec.state(
        layers=spec.layers,
        parts=[*spec.state_parts, StatePart("ngrams", "int32", (4,))],
        page_tokens=8,
        groups=4,
        layer_ids=spec.layer_ids,
    )
    tensors = {
        part.name: list(torch.zeros(6, 9, *part.shape, dtype=getattr(torch, part.dtype)))
        for part in more.state_parts
    }
    party = world.party(store, ALONE)
    components = world.components() | {
        "state": Component(namespace(more, "state"), PagedCache.states(more, tensors))
    }
    components["target"] = party.client._lanes[0].component
    client = Client(store, components, ALONE)
    assert client.match(world.path).pages == 0
    assert client.load(world.path, party.slots()).pages == 0


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_B65_bytes_declared_are_bytes_stored_for_every_component(model: Model) -> None:
    world, found = world_of(model), contents(filled_store(model))
    for name, namespace_ in world.namespaces.items():
        form = ObjectFormat.of(namespace_)
        sizes = {chunk.suffix: chunk for chunk in form.grid.chunks}
        page = 0
        for key, data in found.items():
            if key[65:97] == namespace_.digest and key.startswith(world.path[0]):
                chunk = sizes[key[98:]]
                assert len(data) == form.object_bytes(chunk)
                assert parse_header(memoryview(data)).payload_bytes == chunk.payload_bytes
                page += chunk.payload_bytes
        spec = model.caches[name].spec
        assert page == spec.page_bytes == spec.layers * spec.layer_bytes
