"""Page chains: however a sequence grows, its pages have the names of the whole."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import KeyFormatError, SpecError
from unikv.pages import Extra, PageChain, Root, page_hashes

SECRET = b"a tenant's secret"
CAT, DOG = Extra("image", b"cat"), Extra("image", b"dog")
pieces = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=9), max_size=9)
some_extras = st.dictionaries(
    st.integers(0, 9),
    st.lists(st.builds(Extra, tag=st.sampled_from("ab"), value=st.binary(max_size=2)), max_size=2),
)


@given(pieces, st.integers(1, 5), some_extras)
def test_a_sequence_that_grows_has_the_names_of_the_whole(
    pieces: list[list[int]], page_tokens: int, extras: dict[int, Sequence[Extra]]
) -> None:
    root = Root(salt="s", secret=SECRET)
    whole = page_hashes([t for piece in pieces for t in piece], page_tokens, root, extras=extras)
    chain = PageChain(page_tokens, root=root)
    first = chain.extend([], extras=extras)
    assert first + [name for piece in pieces for name in chain.extend(piece)] == whole
    assert chain.pages == len(whole)


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 30), st.integers(1, 5))
def test_B107_a_chain_may_go_on_from_any_page(
    tokens: list[int], cut: int, page_tokens: int
) -> None:
    whole = page_hashes(tokens, page_tokens)
    pages = min(cut, len(whole))
    chain = PageChain(page_tokens, parent=whole[pages - 1] if pages else None)
    assert chain.extend(tokens[pages * page_tokens :]) == whole[pages:]


def test_extras_may_come_before_their_page_is_whole() -> None:
    whole = page_hashes(range(8), 4, extras={0: [CAT, DOG], 1: [CAT]})
    chain = PageChain(4)
    assert chain.extend([0, 1], extras={0: [CAT], 1: [CAT]}) == []
    assert chain.extend([2, 3, 4], extras={0: [DOG]}) == whole[:1]
    assert chain.extend([5, 6, 7]) == whole[1:]


def test_extras_of_a_named_page_are_refused_and_change_nothing() -> None:
    chain = PageChain(4)
    chain.extend(range(6))
    with pytest.raises(SpecError, match="extras of page 0: want an index from 1"):
        chain.extend([6, 7], extras={1: [CAT], 0: [CAT]})
    assert chain.extend([6, 7]) == page_hashes(range(8), 4)[1:]


def test_a_wrong_token_changes_nothing() -> None:
    chain = PageChain(4)
    chain.extend(range(6))
    with pytest.raises(SpecError, match="token 1 is -7"):
        chain.extend([6, -7], extras={1: [CAT]})
    assert chain.extend([6, 7]) == page_hashes(range(8), 4)[1:]


def test_a_chain_does_not_show_its_key() -> None:
    assert SECRET.decode() not in repr(PageChain(4, root=Root(secret=SECRET)))


def test_a_chain_refuses_what_page_hashes_refuses() -> None:
    with pytest.raises(SpecError, match="page_tokens 0: want 1 to 1048576"):
        PageChain(0)
    with pytest.raises(KeyFormatError, match="want 64 digits"):
        PageChain(4, parent="x")
