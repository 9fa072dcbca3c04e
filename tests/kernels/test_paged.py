"""Pools that are built, checked against a spec, and refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from unikv.errors import PoolError
from unikv.geometry import Box, Interval, Phase
from unikv.paged import PagedCache
from unikv.regions import Region
from unikv.spec import KVSpec, StatePart

BF16 = torch.bfloat16


def zeros(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def some(count: int, *shape: int, dtype: torch.dtype = BF16) -> list[Tensor]:
    return [zeros(*shape, dtype=dtype) for _ in range(count)]


def box(layers: int, heads: int = 1, phase: Phase = Phase()) -> Box:  # noqa: B008 - frozen
    return Box(Interval(0, layers), Interval(0, heads), phase)


SPEC = KVSpec.mha(layers=6, kv_heads=4, head_dim=8, dtype="bfloat16", page_tokens=64)
ONE = zeros(8, 2, 4)

BUILDS: dict[str, tuple[Callable[[], PagedCache], str]] = {
    "K without V": (lambda: PagedCache.slots(some(2, 8, 2, 4), some(1, 8, 2, 4)), "2 tensors of K"),
    "no tensor": (lambda: PagedCache.rows([[1, 2]]), r"rows\[0\] is list: want a dense"),  # type: ignore[list-item]  # the fault
    "sparse": (lambda: PagedCache.rows([zeros(8, 4).to_sparse()]), "want a dense torch tensor"),
    "axes": (lambda: PagedCache.slots(some(1, 8, 4), some(1, 8, 4)), r"k\[0\] of shape \(8, 4\)"),
    "empty": (lambda: PagedCache.slots(some(1, 0, 2, 4), some(1, 0, 2, 4)), "no axis empty"),
    "stride": (
        lambda: PagedCache.rows([zeros(4, 8).t()]),
        r"rows\[0\] has stride 8 on its last axis: want 1",
    ),
    "shape of layer 1": (
        lambda: PagedCache.slots([zeros(8, 2, 4), zeros(9, 2, 4)], some(2, 8, 2, 4)),
        r"k\[1\] has blocks, tokens, heads \(9, 1, 2\): want \(8, 1, 2\), as k\[0\]",
    ),
    "heads of V": (
        lambda: PagedCache.slots(some(1, 8, 2, 4), some(1, 8, 1, 4)),
        r"v\[0\] has blocks, tokens, heads \(8, 1, 1\): want \(8, 1, 2\), as k\[0\]",
    ),
    "dim of layer 2": (
        lambda: PagedCache.rows([*some(2, 8, 4), zeros(8, 5)]),
        r"rows\[2\] has bytes a row 10: want 8, as rows\[0\]",
    ),
    "dtype of layer 1": (
        lambda: PagedCache.rows([zeros(8, 4), zeros(8, 4, dtype=torch.float16)]),
        r"rows\[1\] has dtype float16: want bfloat16, as rows\[0\]",
    ),
    "device of layer 1": (
        lambda: PagedCache.rows([zeros(8, 4), zeros(8, 4).to("meta")]),
        r"rows\[1\] has device meta: want cpu, as rows\[0\]",
    ),
    "unknown dtype": (
        lambda: PagedCache.rows(some(1, 8, 4, dtype=torch.float64)),
        r"rows\[0\] of dtype float64: want one of float32",
    ),
    "declared dtype unknown": (
        lambda: PagedCache.rows(some(1, 8, 4), dtype="fp8"),
        "dtype 'fp8': want one of float32",
    ),
    "declared dtype wider": (
        lambda: PagedCache.rows(some(1, 8, 4, dtype=torch.uint8), dtype="bfloat16"),
        "of dtype uint8, declared as bfloat16: want bfloat16, or an integer dtype of 2 bytes",
    ),
    "declared dtype of another float": (
        lambda: PagedCache.rows(some(1, 8, 4), dtype="float16"),
        "of dtype bfloat16, declared as float16",
    ),
    "one tensor twice": (lambda: PagedCache.rows([zeros(8, 4)] * 2), "share memory"),
    "K is V": (
        lambda: PagedCache.slots([ONE], [ONE]),
        r"k\[0\] and v\[0\] share memory: want a tensor each",
    ),
    "V inside K": (lambda: PagedCache.slots([ONE], [ONE[:, :, 1:3]]), "share memory"),
    "expanded": (
        lambda: PagedCache.rows([zeros(1, 4).expand(8, 4)]),
        r"rows of 8 bytes at strides \(0, .*\) overlap",
    ),
    "order": (
        lambda: PagedCache.blocks(some(1, 8, 2, 2, 8), order="NDH"),  # type: ignore[arg-type]  # the fault
        "order 'NDH': want 'NHD'",
    ),
    "split": (
        lambda: PagedCache.blocks(some(1, 8, 2, 2, 8), order="NHD", split="axis2"),  # type: ignore[arg-type]  # the fault
        "split 'axis2': want 'axis0'",
    ),
    "split of 4 axes": (
        lambda: PagedCache.blocks(some(1, 2, 2, 2, 8), order="NHD", split="axis0"),
        "of 4 axes .* wants 5, axis 0 of 2",
    ),
    "packed of 5 axes": (
        lambda: PagedCache.blocks(some(1, 2, 8, 2, 2, 8), order="NHD", split="packed"),
        "split='packed' wants 4",
    ),
    "no axis of 2": (
        lambda: PagedCache.blocks(some(1, 3, 8, 2, 2, 8), order="NHD"),
        r"first two \(3, 8\): want exactly one of 2",
    ),
    "odd packed": (
        lambda: PagedCache.blocks(some(1, 8, 2, 2, 7), order="NHD"),
        r"packs K and V in 7 elements, dims \(3, 4\): want dims=\(of K, of V\) that sum to 7",
    ),
    "dims": (
        lambda: PagedCache.blocks(some(1, 8, 2, 2, 8), order="NHD", dims=(8, 0)),
        r"dims \(8, 0\)",
    ),
    "dims of a split": (
        lambda: PagedCache.blocks(some(1, 2, 8, 2, 2, 8), order="NHD", dims=(8, 8)),
        "want none",
    ),
    "region beyond": (
        lambda: packed(Region(0, (2, 2, 1, 8), (16, 8, 8)), Region(32, (2, 2, 1, 8), (16, 8, 8))),
        "layer 1, part 0 ends at byte 64: want it in the buffer's 60 bytes",
    ),
    "region below": (
        lambda: packed(Region(-8, (2, 2, 1, 8), (16, 8, 8))),
        "layer 0, part 0: .* no offset or stride below 0",
    ),
    "regions share": (
        lambda: packed(Region(0, (2, 2, 1, 8), (24, 8, 8)), Region(12, (2, 2, 1, 8), (24, 8, 8))),
        "layer 0, part 0 and layer 1, part 0 share memory",
    ),
    "layers without parts": (
        lambda: PagedCache.packed(zeros(8), [[]], dtype="uint8"),
        "layer 0 has no",
    ),
    "parts of layer 1": (
        lambda: PagedCache.packed(
            zeros(64),
            [
                [Region(0, (2, 2, 1, 8), (16, 8, 8))],
                [Region(32 + i, (1, 1, 1, 1), (1, 1, 1)) for i in (0, 1)],
            ],
            dtype="uint8",
        ),
        "layer 1, part 0: 2 tensors in this layer: want 1",
    ),
}


def packed(*regions: Region) -> PagedCache:
    return PagedCache.packed(
        torch.zeros(60, dtype=torch.uint8), [[r] for r in regions], dtype="uint8"
    )


@pytest.mark.parametrize("name", BUILDS)
def test_tensors_that_make_no_pool_are_refused(name: str) -> None:
    build, message = BUILDS[name]
    with pytest.raises(PoolError, match=message):
        build()


def slots(
    layers: int = 6, heads: int = 4, k: int = 8, v: int = 8, **options: Any
) -> PagedCache:  # Any: dtype or device
    tensors = [
        torch.zeros(128, heads, dim, **{"dtype": BF16, **options})
        for dim in (k, v)
        for _ in range(layers)
    ]
    return PagedCache.slots(tensors[:layers], tensors[layers:])


CHECKS: dict[str, tuple[Callable[[], PagedCache], Box, str]] = {
    "layers": (lambda: slots(layers=5), box(6, 4), "pool of 5 layers: want 6"),
    "a layer too many": (slots, box(0, 4), "pool of 6 layers: want 0"),
    "heads": (lambda: slots(heads=2), box(6, 4), "pool of 2 heads: want 4"),
    "dim of K": (lambda: slots(k=9), box(6, 4), "k rows of 18 bytes: want 16, 8 of bfloat16"),
    "dim of V": (lambda: slots(v=4), box(6, 4), "v rows of 8 bytes: want 16, 8 of bfloat16"),
    "dtype": (lambda: slots(dtype=torch.float16), box(6, 4), "dtype float16: want bfloat16"),
    "device": (lambda: slots(device="meta"), box(6, 4), "device meta: want cpu, this release"),
    "parts": (lambda: PagedCache.rows(some(6, 8, 8)), box(6), "1 tensors a layer: want 2, k and v"),
    "block": (
        lambda: PagedCache.blocks(some(6, 8, 48, 4, 16), order="NHD"),
        box(6, 4),
        "blocks of 48 tokens: want a divisor of the 64 rows",
    ),
    "block of a phase": (
        lambda: PagedCache.blocks(some(6, 8, 64, 4, 16), order="NHD"),
        box(6, 4, Phase(1, 2, 1)),
        "blocks of 64 tokens: want a divisor of the 32 rows",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_pool_of_another_shape_than_the_ranks_is_refused(name: str) -> None:
    build, wanted, message = CHECKS[name]
    with pytest.raises(PoolError, match=message):
        build().check(SPEC, wanted)


def test_tokens_and_heads_swapped_are_refused_by_their_numbers() -> None:
    kv = some(6, 10, 4, 16, 16)  # vLLM's axes: blocks, heads, tokens, 2 * dim
    PagedCache.blocks(kv, order="HND").check(SPEC, box(6, 4))
    with pytest.raises(PoolError, match="pool of 16 heads: want 4"):
        PagedCache.blocks(kv, order="NHD").check(SPEC, box(6, 4))


def test_pools_of_the_ranks_box_pass() -> None:
    slots().check(SPEC, box(6, 4))
    slots(layers=2, heads=1).check(SPEC, box(2, 1, Phase(1, 4, 2)))
    PagedCache.slots([], []).check(SPEC, box(0, 4))
    fp8 = KVSpec.mla(layers=2, dim=576, dtype="float8_e4m3fn", page_tokens=64)
    carried = PagedCache.rows(some(2, 8, 16, 576, dtype=torch.uint8), dtype="float8_e4m3fn")
    carried.check(fp8, box(2))
    with pytest.raises(PoolError, match="dtype uint8: want float8_e4m3fn"):
        PagedCache.rows(some(2, 8, 576, dtype=torch.uint8)).check(fp8, box(2))
    indexer = KVSpec.rows(layers=2, row_bytes=132, rows_per_page=64, page_tokens=64)
    PagedCache.rows(some(2, 8, 66)).check(indexer, box(2))  # bytes, whatever the dtype


def test_a_state_without_segments_is_regions_of_a_buffer() -> None:
    spec = KVSpec.state(
        layers=1,
        parts=[StatePart("conv", "bfloat16", (8, 3)), StatePart("ssm", "float32", (4, 2))],
        page_tokens=64,
        groups=4,
    )
    shape = (5, 1, 4)
    regions = [Region(0, (*shape, 12), (80, 80, 12)), Region(48, (*shape, 8), (80, 80, 8))]
    pool = PagedCache.packed(torch.zeros(400, dtype=torch.uint8), [regions], dtype="uint8")
    pool.check(spec, box(1, 4))


def test_packed_regions_are_each_layers_own() -> None:
    buffer = torch.arange(200, dtype=torch.uint8)
    regions = [
        [Region(100, (2, 3, 2, 4), (24, 8, 4))],
        [Region(3, (2, 3, 2, 4), (40, 4, 16))],
    ]
    first, second = (views[0] for views in PagedCache.packed(buffer, regions, dtype="uint8").parts)
    assert first[1, 2, 1].tolist() == [144, 145, 146, 147]
    assert second[1, 2, 1].tolist() == [67, 68, 69, 70]


def test_a_repr_shows_the_shape_and_no_values() -> None:
    text = repr(slots())
    assert text == (
        "PagedCache(6 layers, 128 blocks of 1 tokens, 4 heads, rows of [16, 16] bytes, "
        "bfloat16, cpu)"
    )
    assert "0 layers" in repr(PagedCache.rows([]))


def test_views_share_the_engines_memory_and_no_graph() -> None:
    grown = zeros(8, 4).float().requires_grad_() * 2
    with torch.inference_mode():
        frozen = zeros(8, 4)
        inside = PagedCache.rows([frozen])
    for tensor, pool in (
        (grown, PagedCache.rows([grown])),
        (frozen, inside),
        (frozen, PagedCache.rows([frozen])),
    ):
        view = pool.parts[0][0]
        assert view.data_ptr() == tensor.data_ptr()
        assert not view.requires_grad
        assert not view.is_inference()
        view.fill_(0)
