"""Coverage on the field's reports, by id: each input as the report gives it, in pages."""

import pytest

from unikv.coverage import (
    Coverage,
    Endpoints,
    EveryPage,
    Window,
    endpoints,
    endpoints_to_keep,
    greatest,
    pages_needed,
    pages_to_store,
    restorable_pages,
    storable_pages,
    valid_to,
    window_pages,
)

EVERY = EveryPage()


def upto(pages: int) -> set[int]:
    return set(range(pages))


def test_B27_kv_is_restored_no_longer_than_its_indexer_was_read() -> None:
    kv, indexer = upto(8), upto(8)
    assert greatest(*(endpoints(EVERY, held, 8, 64) for held in (kv, indexer))) == 8
    indexer.discard(5)  # gone between the question and the read
    end = greatest(*(endpoints(EVERY, held, 8, 64) for held in (kv, indexer)))
    assert end == 5
    assert list(pages_needed(EVERY, end, 64)) == [0, 1, 2, 3, 4]


def test_B28_without_any_indexer_page_nothing_is_restored() -> None:
    assert greatest(endpoints(EVERY, upto(8), 8, 64), endpoints(EVERY, set(), 8, 64)) == 0


def test_B29_pages_count_only_when_all_components_are_in() -> None:
    kv, indexer = upto(8), set[int]()
    for arrived in range(8):
        ends = [endpoints(EVERY, held, 8, 64) for held in (kv, indexer)]
        assert greatest(*ends) == arrived
        indexer.add(arrived)


def test_B30_a_required_draft_ends_the_prefix_and_an_optional_one_only_itself() -> None:
    target, draft = endpoints(EVERY, upto(6), 6, 64), upto(4)
    assert greatest(target, endpoints(EVERY, draft, 6, 64)) == 4
    end = greatest(target)
    assert end == 6
    assert valid_to(EVERY, draft, end, 64) == 4


def test_B30_an_optional_draft_of_a_sliding_window_serves_its_endpoint_or_none() -> None:
    window = Window(128)
    assert valid_to(window, {4, 5}, 6, 64) == 6
    assert valid_to(window, upto(5), 6, 64) == 0
    assert not pages_needed(window, 0, 64)


def test_B32_a_boundary_without_a_snapshot_is_no_endpoint() -> None:
    slots = [7, 0, 9]  # slot 0 is the engine's null block: boundary 2 has no state
    held = {page for page, slot in enumerate(slots) if slot}
    assert endpoints(Endpoints(), held, 3, 16) == {0, 1, 3}


@pytest.mark.parametrize(
    ("attention", "answer"),
    [
        pytest.param({0, 2, 4}, 2, id="objects that end at 32 and 64"),
        pytest.param(endpoints(EVERY, {0, 1, 3}, 4, 16), 2, id="ranges of 16, 32..48 not stored"),
        pytest.param(endpoints(EVERY, upto(4), 4, 16), 3, id="ranges of 16, all stored"),
    ],
)
def test_B34_a_longer_object_implies_no_shorter_endpoint(attention: set[int], answer: int) -> None:
    state = endpoints(Endpoints(), {1, 2}, 4, 16)  # at tokens 32 and 48
    assert state == {0, 2, 3}
    assert greatest(attention, state) == answer


def test_B36_a_page_that_left_the_window_before_it_was_stored_is_no_longer_held() -> None:
    window, pages = Window(32), 5
    planned = pages_to_store(window, {4, 5}, pages, 16)
    assert planned == [2, 3, 4]
    stored = set(planned) - {2}  # its slot was given to another request: the store is dropped
    assert endpoints(window, stored, pages, 16) == {0, 5}


@pytest.mark.parametrize(("tokens", "pages"), [(64, 3), (1, 0), (16, 0), (17, 1), (0, 0)])
def test_B38_a_full_hit_less_one_token_is_whole_pages(tokens: int, pages: int) -> None:
    assert restorable_pages(tokens, 16) == pages


def test_B39_a_decode_with_three_pages_asks_for_the_two_behind_them() -> None:
    here, asked = 3, 5
    assert [here + page for page in pages_needed(EVERY, asked - here, 16)] == [3, 4]


def test_B59_of_dense_sets_the_least_maximum_is_right() -> None:
    ranks = [endpoints(EVERY, upto(pages), 6, 64) for pages in (6, 6, 4, 6)]
    assert greatest(*ranks) == 4 == min(max(rank) for rank in ranks)


def test_B59_of_sparse_sets_the_least_maximum_is_no_endpoint_of_all() -> None:
    ranks = [endpoints(Endpoints(), held, 6, 64) for held in ({1, 5}, {1, 5}, {1, 3}, {1, 5})]
    assert min(max(rank) for rank in ranks) == 4
    assert greatest(*ranks) == 2


def test_B63_no_more_is_announced_than_was_read() -> None:
    found, read = upto(1), set[int]()
    assert greatest(endpoints(EVERY, found, 1, 64)) * 64 == 64
    assert greatest(endpoints(EVERY, read, 1, 64)) * 64 == 0
    read.add(0)
    assert greatest(endpoints(EVERY, read, 1, 64)) * 64 == 64


@pytest.mark.parametrize(
    ("swa", "kv", "answer"),
    [
        pytest.param({2, 3}, 4, 0, id="half a window"),
        pytest.param({0, 1, 2, 3}, 4, 4, id="a whole window"),
        pytest.param({1, 2, 3, 4}, 7, 5, id="an earlier whole window"),
    ],
)
def test_B64_a_window_is_whole_or_no_endpoint(swa: set[int], kv: int, answer: int) -> None:
    ends = (endpoints(EVERY, upto(kv), kv, 16), endpoints(Window(64), swa, kv, 16))
    assert greatest(*ends) == answer


def test_B78_tokens_retained_for_a_drafter_are_part_of_the_window() -> None:
    rule = Window(32, retained=3)
    assert list(pages_needed(rule, 4, 16)) == [1, 2, 3]
    assert pages_to_store(rule, {4}, 4, 16) == [1, 2, 3]
    assert endpoints(rule, {1, 2, 3}, 4, 16) == {0, 4}
    bare = pages_to_store(Window(32), {4}, 4, 16)
    assert endpoints(rule, set(bare), 4, 16) == {0}


@pytest.mark.parametrize(
    ("retained", "pages"), [(0, 16), (1, 16), (2, 17)], ids="retains {}".format
)
def test_B78_one_token_retained_rounds_up_to_no_page_more(retained: int, pages: int) -> None:
    assert window_pages(1024, retained, 64) == pages


@pytest.mark.parametrize("rule", [EVERY, Window(32), Window(33)], ids=str)
def test_B79_a_pending_page_behind_a_gap_is_not_waited_for(rule: Coverage) -> None:
    hit, pending = {0, 1}, {3}  # HIT, HIT, MISS, PENDING
    now = greatest(endpoints(rule, hit, 4, 16))
    assert now == 2
    assert greatest(endpoints(rule, hit | pending, 4, 16)) == now


@pytest.mark.parametrize("rule", [EVERY, Window(32), Endpoints()], ids=str)
def test_B79_a_pending_page_that_would_lengthen_the_prefix_shows(rule: Coverage) -> None:
    hit, pending = {0}, {1}
    assert greatest(endpoints(rule, hit, 2, 16)) == 1
    assert greatest(endpoints(rule, hit | pending, 2, 16)) == 2


def test_B80_the_same_prompt_finds_its_window_one_page_short() -> None:
    window, tokens = Window(32), 64
    asked = restorable_pages(tokens, 16)
    stored = pages_to_store(window, endpoints_to_keep(tokens, 16), 4, 16)
    ends = (endpoints(EVERY, upto(asked), asked, 16), endpoints(window, set(stored), asked, 16))
    assert greatest(*ends) == asked == 3


def test_B80_a_window_stored_for_the_whole_prompt_alone_serves_no_trimmed_one() -> None:
    stored = set(pages_to_store(Window(32), {4}, 4, 16))
    assert greatest(endpoints(Window(32), stored, restorable_pages(64, 16), 16)) == 0


@pytest.mark.parametrize("more", [0, 1, 64], ids="+{} tokens".format)
@pytest.mark.parametrize("chunks", [1, 2, 3], ids="{} chunks".format)
def test_B81_chunked_prefill_stores_every_whole_page(chunks: int, more: int) -> None:
    chunk, page = 256, 64
    lengths = [chunk * n for n in range(1, chunks + 1)]
    lengths.append(lengths[-1] + more)
    stored = set[int]()
    for tokens in lengths:
        pages = storable_pages(tokens, page)
        stored |= set(pages_to_store(EVERY, {pages}, pages, page))
    assert stored == upto(lengths[-1] // page)


def test_B81_an_endpoint_of_a_window_is_kept_at_every_chunk_border() -> None:
    window, page = Window(100), 64
    ends = {storable_pages(tokens, page) for tokens in (256, 512, 8193)}
    stored = set(pages_to_store(window, ends, 128, page))
    assert endpoints(window, stored, 128, page) == {0, 4, 8, 128}
