"""Pages: chained names that depend on tokens, root and extras, and on nothing else."""

import struct
import time
from array import array
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import KeyFormatError, SpecError
from unikv.pages import Extra, PageChain, Root, page_hashes

SIX = list(range(100, 124))  # six pages of four tokens
SECRET = b"a tenant's secret"
ids = st.integers(0, 2**32 - 1)
roots = st.builds(
    Root,
    salt=st.none() | st.text(max_size=3) | st.binary(max_size=3),
    adapter=st.none() | st.text(max_size=3),
    adapter_digest=st.none() | st.text(max_size=3),
    secret=st.none() | st.binary(min_size=16, max_size=17),
)


def by_hand(tokens: list[int], page_tokens: int, fields: bytes = b"", key: bytes = b"") -> str:
    """Return the first page's hash as docs/format.md words it."""
    start = b"\x01" + struct.pack("<II", 4, page_tokens) + fields
    root = blake3(start, derive_key_context="unikv page root v1").digest()
    data = root + struct.pack(f"<{page_tokens}I", *tokens[:page_tokens])
    if not key:
        return blake3(data).hexdigest()
    return blake3(
        data, key=blake3(key, derive_key_context="unikv page key v1").digest()
    ).hexdigest()


def test_a_page_hash_is_built_byte_for_byte_as_the_format_says() -> None:
    salt, adapter = b"\x02\x02\0\0\0bc", b"\x04\x01\0\0\0X"
    assert page_hashes(SIX, 4)[0] == by_hand(SIX, 4)
    assert page_hashes(SIX, 4, Root(salt="bc", adapter="X"))[0] == by_hand(SIX, 4, salt + adapter)
    assert page_hashes(SIX, 4, Root(secret=SECRET))[0] == by_hand(SIX, 4, key=SECRET)
    first, second = page_hashes(SIX, 4, extras={1: [Extra("image", b"\x07")]})[:2]
    data = bytes.fromhex(first) + struct.pack("<4I", *SIX[4:8])
    assert second == blake3(data + b"\x05\0\0\0image\x01\0\0\0\x07").hexdigest()


def test_only_whole_pages_have_names() -> None:
    assert [len(page_hashes(range(n), 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert page_hashes(SIX[:7], 4) == page_hashes(SIX, 4)[:1]


def test_every_name_depends_on_all_tokens_before() -> None:
    names = page_hashes(SIX, 4)
    assert len(set(names)) == 6
    for place in range(24):
        changed = page_hashes([*SIX[:place], 7, *SIX[place + 1 :]], 4)
        assert [a == b for a, b in zip(names, changed, strict=True)] == [
            page < place // 4 for page in range(6)
        ]


def test_page_sizes_have_chains_of_their_own() -> None:
    assert not set(page_hashes(SIX, 4)) & set(page_hashes(SIX, 8))


@pytest.mark.parametrize("root", [Root(), Root("salt", "X", "d1", SECRET)], ids=["bare", "full"])
def test_B107_a_continuation_has_the_names_of_the_whole(root: Root) -> None:
    whole = page_hashes(SIX, 4, root)
    head = page_hashes(SIX[:8], 4, root)
    assert head + page_hashes(SIX[8:], 4, root, parent=head[-1]) == whole
    assert page_hashes(SIX[8:], 4, root, parent=whole[1]) == whole[2:]


def test_a_parent_holds_the_salt_already_and_the_secret_not() -> None:
    parent = page_hashes(SIX[:8], 4, Root("salt", secret=SECRET))[-1]
    names = page_hashes(SIX, 4, Root("salt", secret=SECRET))[2:]
    assert page_hashes(SIX[8:], 4, Root(secret=SECRET), parent=parent) == names
    assert page_hashes(SIX[8:], 4, Root("salt"), parent=parent) != names


@pytest.mark.parametrize("parent", ["", "0" * 63, "A" * 64, "0" * 64 + "\n", b"0" * 64, 0])
def test_a_parent_that_is_no_page_hash_is_refused(parent: Any) -> None:
    with pytest.raises(KeyFormatError, match="want 64 digits of 0-9a-f"):
        page_hashes(SIX, 4, parent=parent)


SALTS = [
    Root(),
    Root(salt=""),
    Root(salt="a"),
    Root(salt=b"a"),
    Root(salt="a", adapter="bc"),
    Root(salt="ab", adapter="c"),
    Root(adapter="a"),
    Root(adapter_digest="a"),
    Root(adapter=""),
    Root(salt="", adapter=""),
    Root(salt="\u00e9"),
    Root(salt="e\u0301"),
    Root(secret=SECRET),
    Root(salt=SECRET),
]


def test_B04_salts_absent_empty_and_split_elsewhere_have_chains_of_their_own() -> None:
    chains = [page_hashes(SIX, 4, root) for root in SALTS]
    assert len({name for chain in chains for name in chain}) == 6 * len(SALTS)


def test_B05_an_adapter_and_a_salt_of_one_name_differ() -> None:
    adapter, salt = page_hashes(SIX, 4, Root(adapter="X")), page_hashes(SIX, 4, Root(salt="X"))
    assert not set(adapter) & set(salt)


@given(roots, roots)
def test_B05_roots_that_differ_have_names_that_differ(one: Root, other: Root) -> None:
    assert (page_hashes([1, 2], 2, one) == page_hashes([1, 2], 2, other)) == (one == other)


@given(st.lists(ids, min_size=3, max_size=3), st.lists(ids, min_size=3, max_size=3))
def test_pages_that_differ_have_names_that_differ(one: list[int], other: list[int]) -> None:
    assert (page_hashes(one, 3) == page_hashes(other, 3)) == (one == other)


extras = st.lists(
    st.builds(Extra, tag=st.text(min_size=1, max_size=3), value=st.binary(max_size=3)), max_size=3
)


@given(extras, extras)
def test_extras_that_differ_have_names_that_differ(one: list[Extra], other: list[Extra]) -> None:
    names = [page_hashes([1, 2], 2, extras={0: items}) for items in (one, other)]
    assert (names[0] == names[1]) == (one == other)


def test_an_extra_changes_its_page_and_those_after_it() -> None:
    plain = page_hashes(SIX, 4)
    image = page_hashes(SIX, 4, extras={2: [Extra("image", b"cat")]})
    assert [a == b for a, b in zip(plain, image, strict=True)] == [True, True, *[False] * 4]
    assert page_hashes(SIX, 4, extras={2: []}) == plain
    assert page_hashes(SIX, 4, extras={6: [Extra("image", b"cat")]}) == plain


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({-1: []}, "extras of page -1: want an index from 0"),
        ({"0": []}, "extras of page '0': want an index"),
        ({True: []}, "extras of page True: want an index"),
        ({0: [("", b"")]}, "extra with tag '': want Extra"),
        ({0: [("image", "cat")]}, "extra with tag 'image': want Extra.*a text and bytes"),
        ({0: [("\ud800", b"")]}, "extra tag: want a text without lone surrogates"),
    ],
)
def test_wrong_extras_are_refused(extras: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        page_hashes(SIX, 4, extras=extras)


def test_B14_a_name_is_a_whole_digest() -> None:
    (name,) = page_hashes([1], 1)
    assert len(bytes.fromhex(name)) == 32


@pytest.mark.parametrize(
    "value", [-1, 2**32, 2**70, True, False, 1.0, 1.5, "1", None, [1], b"\x01"], ids=repr
)
def test_an_id_that_does_not_fit_u32_is_named_by_its_position(value: object) -> None:
    tokens: Any = [*range(9), value, -5]
    with pytest.raises(SpecError, match=r"token 9 is .*: want (an id|a whole number) from 0"):
        page_hashes(tokens, 4)


@pytest.mark.parametrize("tokens", ["12", b"12", bytearray(2), memoryview(b"12"), 7, None])
def test_what_is_no_list_of_ids_is_refused(tokens: Any) -> None:
    with pytest.raises(SpecError, match="want a list or"):
        page_hashes(tokens, 1)


def test_ids_may_come_in_any_array() -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    names = page_hashes(SIX, 4)
    for dtype in (np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.dtype(">i4")):
        assert page_hashes(np.array(SIX, dtype), 4) == names
    for dtype in (torch.int32, torch.int64, torch.uint8):
        assert page_hashes(torch.tensor(SIX, dtype=dtype), 4) == names
    assert page_hashes(np.array(SIX + SIX)[::2][:0], 4) == []
    assert page_hashes(np.repeat(SIX, 2)[::2], 4) == names
    assert page_hashes(array("q", SIX), 4) == page_hashes(array("H", SIX), 4) == names
    assert page_hashes([np.int64(token) for token in SIX], 4) == names
    assert page_hashes(tuple(SIX), 4) == page_hashes(iter(SIX), 4) == names


@pytest.mark.parametrize("values", [[1.0], [True], [[1]], [-1]], ids=repr)
def test_arrays_of_anything_else_are_refused(values: list[object]) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    for tokens in (np.array(values), torch.tensor(values)):
        with pytest.raises(SpecError, match=r"token 0 is .*: want"):
            page_hashes(tokens, 1)


@pytest.mark.parametrize("page_tokens", [0, -1, True, 4.0, "4", 2**20 + 1])
def test_a_page_of_no_tokens_is_refused(page_tokens: Any) -> None:
    with pytest.raises(SpecError, match=r"page_tokens .*: want 1 to 1048576"):
        page_hashes(SIX, page_tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"secret": b"hunter2"}, "secret of 7 bytes: want 16 or more"),
        ({"secret": "hunter2hunter2hunter2"}, "secret of type str: want bytes"),
        ({"salt": 7}, "salt of type int: want a text"),
        ({"adapter": b"X"}, "adapter of type bytes: want a text"),
        ({"adapter_digest": 1}, "adapter_digest of type int"),
    ],
)
def test_a_wrong_root_is_refused_without_its_value(fields: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        Root(**fields)
    assert "hunter2" not in str(caught.value)


def test_secrets_and_salts_are_never_shown() -> None:
    root = Root(salt="hunter2-salt", adapter="X", secret=b"hunter2-hunter2-hunter2")
    assert "hunter2" not in f"{root} {root!r}"
    with pytest.raises(SpecError) as caught:
        page_hashes([-1], 1, Root(salt="hunter2\ud800"))
    assert "hunter2" not in str(caught.value)


def test_nobody_without_the_secret_finds_a_tenants_pages() -> None:
    other = b"another tenant's "
    chains = [page_hashes(SIX, 4, Root(secret=s)) for s in (None, SECRET, other)]
    assert len({name for chain in chains for name in chain}) == 18


def test_long_sequences_are_named_in_milliseconds() -> None:
    tokens = list(range(200_000))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        page_hashes(tokens, 64)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # measured: 0.006 s; the bound is for busy machines


@pytest.mark.parametrize("tokens", [set(SIX), frozenset(SIX), dict.fromkeys(SIX), {1: 2}.keys()])
def test_tokens_without_an_order_are_refused(tokens: Any) -> None:
    with pytest.raises(SpecError, match="want a list or array of ids, in order"):
        page_hashes(tokens, 4)
    with pytest.raises(SpecError, match="in order"):
        PageChain(4).extend(tokens)
