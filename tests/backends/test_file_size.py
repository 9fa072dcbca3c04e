"""Sizes: texts that mean bytes, and what room bytes take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.file_size import parse_size, room_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("4096B", 4096),
        ("10KB", 10_000),
        ("10KiB", 10_240),
        ("10K", 10_240),
        ("200GB", 200 * 10**9),
        ("200GiB", 200 * 2**30),
        ("200g", 200 * 2**30),
        ("200gb", 200 * 10**9),
        ("1.5TB", 1_500_000_000_000),
        ("0.5MiB", 524_288),
        ("2PiB", 2**51),
    ],
)
def test_a_size_means_its_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0GB",
        "0.0001",
        "-1",
        "+1",
        "1 GB",
        "1\n",
        "1_000",
        "1e9",
        "٣",
        "99999PB",
    ],
)
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="want") as caught:
        parse_size(text)
    assert repr(text)[:40] in str(caught.value)


@given(st.integers(0, 2**50))
def test_room_is_whole_blocks(size: int) -> None:
    room = room_of(size)
    assert room % 4096 == 0
    assert 0 <= room - size < 4096


@given(st.integers(1, 2**61))
def test_plain_bytes_come_back(size: int) -> None:
    assert parse_size(str(size)) == size
