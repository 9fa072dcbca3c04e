"""Every pool layout, its views compared byte by byte with arrays that were laid out by hand."""

import pytest

from tests.kernels.pools import HEADED, HEADLESS, UNEQUAL, check_content, coded_layers
from unikv.spec import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", HEADED)
def test_views_find_each_byte_by_layer_part_block_token_and_head(layout: str, dtype: str) -> None:
    width = 3 * DTYPES[dtype]
    data = coded_layers(2, (5, 4, 3), (width, width))
    pool = HEADED[layout](data, dtype)
    assert (pool.layers, pool.heads, pool.dtype) == (2, 3, dtype)
    assert pool.block_count * pool.block_tokens == 20
    check_content(pool, data)


@pytest.mark.parametrize("widths", [(6, 10), (192, 128)], ids=str)
@pytest.mark.parametrize("layout", UNEQUAL)
def test_views_find_k_and_v_of_different_dims(layout: str, widths: tuple[int, int]) -> None:
    data = coded_layers(2, (3, 2, 2), widths)
    check_content(UNEQUAL[layout](data, "bfloat16"), data)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", HEADLESS)
def test_views_find_rows_without_heads(layout: str, dtype: str) -> None:
    data = coded_layers(3, (5, 4, 1), (7 * DTYPES[dtype],))
    pool = HEADLESS[layout](data, dtype)
    assert (pool.layers, pool.heads, pool.dtype) == (3, 1, dtype)
    check_content(pool, data)
