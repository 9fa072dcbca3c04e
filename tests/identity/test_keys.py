"""Keys: exact inverses, one spelling each, and no room for anything else."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.errors import KeyFormatError
from unikv.geometry import Interval
from unikv.keys import ObjectKey
from unikv.pages import check_page_hash
from unikv.store import check_key

PAGE, DIGEST = "0123456789abcdef" * 4, "fedcba9876543210" * 2
GOOD = f"{PAGE}_{DIGEST}_L0-15_H2_T3"
OUT_OF_RANGE = [-1, True, 1.0, "1", 2**32]

layers = st.tuples(st.integers(0, 2**16 - 1), st.integers(1, 2**16)).filter(lambda x: x[0] < x[1])
keys = st.builds(
    ObjectKey,
    page=st.text("0123456789abcdef", min_size=64, max_size=64),
    namespace=st.text("0123456789abcdef", min_size=32, max_size=32),
    layers=layers.map(lambda x: Interval(*x)),
    group=st.none() | st.integers(0, 2**16 - 1),
    phase=st.none() | st.integers(0, 2**20 - 1),
)


@given(keys)
def test_a_key_and_its_text_are_exact_inverses(key: ObjectKey) -> None:
    assert ObjectKey.parse(str(key)) == key
    assert str(ObjectKey.parse(str(key))) == str(key)


@given(keys, keys)
def test_keys_that_differ_have_texts_that_differ(one: ObjectKey, other: ObjectKey) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(keys)
def test_every_key_is_one_that_stores_can_hold_as_a_file(key: ObjectKey) -> None:
    check_key(str(key))
    assert len(str(key)) <= 140


def test_a_key_reads_as_the_design_says() -> None:
    assert str(ObjectKey(PAGE, DIGEST, Interval(0, 15))) == f"{PAGE}_{DIGEST}_L0-15"
    assert str(ObjectKey(PAGE, DIGEST, Interval(15, 30), group=0)) == f"{PAGE}_{DIGEST}_L15-30_H0"
    assert str(ObjectKey(PAGE, DIGEST, Interval(0, 1), phase=7)) == f"{PAGE}_{DIGEST}_L0-1_T7"
    assert str(ObjectKey(PAGE, DIGEST, Interval(0, 15), 2, 3)) == GOOD


def test_B10_B11_stages_heads_and_phases_of_one_page_have_keys_of_their_own() -> None:
    cells = [
        ObjectKey(PAGE, DIGEST, Interval(start, start + 4), group, phase)
        for start in (0, 4)
        for group in (None, 0, 1)
        for phase in (None, 0, 1)
    ]
    assert len({str(cell) for cell in cells}) == len(cells) == 18


def test_B14_a_key_holds_the_whole_page_hash() -> None:
    same_start = PAGE[:63] + "0"
    one, other = (ObjectKey(page, DIGEST, Interval(0, 1)) for page in (PAGE, same_start))
    assert str(one) != str(other)
    assert PAGE in str(one)


WRONG = {
    "empty": "",
    "a word": "..",
    "a path": "../" + GOOD,
    "a folder": GOOD.replace("_", "/", 1),
    "a line break behind": GOOD + "\n",
    "a space before": " " + GOOD,
    "NUL": GOOD + "\0",
    "upper-case page": GOOD.replace(PAGE, PAGE.upper()),
    "upper-case digest": GOOD.replace(DIGEST, DIGEST.upper()),
    "short page": GOOD[1:],
    "long page": "0" + GOOD,
    "short digest": GOOD.replace(DIGEST, DIGEST[1:]),
    "long digest": GOOD.replace(DIGEST, "0" + DIGEST),
    "no layers": f"{PAGE}_{DIGEST}",
    "no stop": f"{PAGE}_{DIGEST}_L0",
    "leading zero of start": GOOD.replace("L0-15", "L00-15"),
    "leading zero of stop": GOOD.replace("L0-15", "L0-015"),
    "leading zero of group": GOOD.replace("H2", "H02"),
    "leading zero of phase": GOOD.replace("T3", "T03"),
    "sign": GOOD.replace("L0-15", "L0-+15"),
    "negative": GOOD.replace("H2", "H-2"),
    "underscore": GOOD.replace("L0-15", "L0-1_5"),
    "stop before start": GOOD.replace("L0-15", "L15-0"),
    "stop at start": GOOD.replace("L0-15", "L15-15"),
    "stop too far": GOOD.replace("L0-15", "L0-65537"),
    "group too far": GOOD.replace("H2", "H65536"),
    "phase too far": GOOD.replace("T3", "T1048576"),
    "long number": GOOD.replace("H2", "H" + "9" * 100),
    "Arabic digits": GOOD.replace("H2", "H\u0662"),
    "full-width digits": GOOD.replace("H2", "H\uff12"),
    "superscript": GOOD.replace("H2", "H\u00b2"),
    "phase before group": f"{PAGE}_{DIGEST}_L0-15_T3_H2",
    "group twice": GOOD.replace("_T3", "_H3"),
    "lower-case layers": GOOD.replace("_L", "_l"),
    "empty group": GOOD.replace("H2", "H"),
    "behind": GOOD + "_X1",
    "empty behind": GOOD + "_",
    "suffix": GOOD + ".tmp",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_everything_but_the_one_spelling_is_refused(text: str) -> None:
    with pytest.raises(KeyFormatError):
        ObjectKey.parse(text)


@pytest.mark.parametrize("text", [None, 7, GOOD.encode(), ["x"]])
def test_what_is_no_text_is_no_key(text: Any) -> None:
    with pytest.raises(KeyFormatError, match=re.escape("want {page, 64 hex}_{namespace, 32 hex}")):
        ObjectKey.parse(text)


@given(st.text() | st.from_regex(r"\A[0-9a-f]{64}_[0-9a-f]{32}_L\d+-\d+(_H\d+)?(_T\d+)?\s?\Z"))
def test_B106_what_parses_is_spelled_the_same_again(text: str) -> None:
    try:
        key = ObjectKey.parse(text)
    except KeyFormatError:
        return
    assert str(key) == text


@given(st.integers(0, len(GOOD) - 1), st.characters())
def test_a_changed_character_never_reads_as_the_same_key(place: int, character: str) -> None:
    text = GOOD[:place] + character + GOOD[place + 1 :]
    try:
        key = ObjectKey.parse(text)
    except KeyFormatError:
        return
    assert (key == ObjectKey.parse(GOOD)) == (text == GOOD)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page": PAGE.upper()}, "page hash .*: want 64 digits of 0-9a-f"),
        ({"page": None}, "page hash None: want 64 digits"),
        ({"namespace": "x"}, "namespace digest 'x': want 32 digits of 0-9a-f"),
        ({"namespace": DIGEST + "\n"}, "namespace digest .*: want 32 digits of 0-9a-f"),
        ({"layers": Interval(3, 3)}, "layers 3-3: want 0 <= start < stop <= 65536"),
        ({"layers": Interval(0, 2**17)}, "layers 0-131072: want"),
        *(
            ({"group": value}, f"group {value!r}: want 0 to 65535, or None")
            for value in OUT_OF_RANGE
        ),
        *(({"phase": value}, f"phase {value!r}: want 0 to 1048575") for value in OUT_OF_RANGE),
    ],
)
def test_a_part_that_has_no_spelling_is_refused(changes: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {"page": PAGE, "namespace": DIGEST, "layers": Interval(0, 1)}
    with pytest.raises(KeyFormatError, match=message):
        ObjectKey(**parts | changes)


@pytest.mark.parametrize(
    "text", ["", PAGE[1:], PAGE + "0", PAGE.upper(), PAGE + "\n", b"0" * 64, 0]
)
def test_a_page_hash_has_one_spelling(text: object) -> None:
    check_page_hash(PAGE)
    with pytest.raises(KeyFormatError, match=r"page hash .*: want 64 digits of 0-9a-f"):
        check_page_hash(text)
