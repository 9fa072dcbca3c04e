"""Where a key's file lies: beneath the root, in no crowd, found again from its name alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unikv.backends.file_names import TEMPORARY, folder_of, folders_for, path_of
from unikv.errors import KeyFormatError
from unikv.testing import HOSTILE_KEYS, page_key

KEYS = st.from_regex(r"\A[0-9A-Za-z_][0-9A-Za-z_.-]{0,159}\Z") | st.builds(
    lambda digits, rest: digits + rest,
    st.from_regex(r"\A[0-9a-f]{64}\Z"),
    st.from_regex(r"\A[0-9A-Za-z_.-]{0,96}\Z"),
)


@given(KEYS)
def test_a_key_is_the_name_of_its_file(key: str) -> None:
    root, folder, name = "/r\u00f6\u00f6t", folder_of(key), path_of("/x", key).decode()
    assert path_of(root, key).decode() == f"{root}/{folder}/{key}"
    assert name == f"/x/{folder}/{key}"
    assert folder in ("_", f"{key[:2]}/{key[2:4]}")
    assert not folder.startswith(TEMPORARY)


@given(st.text())
def test_any_text_has_a_place_beneath_the_root_or_none(key: str) -> None:
    try:
        path = path_of("/root", key).decode("ascii")
    except KeyFormatError:
        return
    _, root, *names = path.split("/")
    assert root == "root"
    assert set(names).isdisjoint({"", ".", ".."})


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=repr)
def test_a_hostile_key_has_no_place(key: str) -> None:
    with pytest.raises(KeyFormatError, match="want 1 to 160 characters"):
        path_of("/root", key)


@pytest.mark.parametrize("key", ["a" * 63, "A" * 64, "g" * 64, "ns_" + "a" * 64])
def test_a_key_without_a_page_hash_lies_apart(key: str) -> None:
    assert folder_of(key) == "_"


def test_chunks_of_a_page_lie_together() -> None:
    key = page_key(0)
    assert folder_of(key + "_H0") == folder_of(key + "_H7")


def test_B95_no_folder_of_100000_pages_grows_large() -> None:
    folders = Counter(folder_of(page_key(i)) for i in range(100_000))
    assert max(folders.values()) <= 16
    assert max(Counter(folder[:2] for folder in folders).values()) <= 256


def test_a_prefix_picks_the_folders_that_may_hold_it() -> None:
    names = ["_", ".tmp", "ab", "ac", "b0", "abc", "AB", "zz"]
    assert list(folders_for(names, "", 0)) == ["ab", "ac", "b0"]
    assert list(folders_for(names, "a", 0)) == ["ab", "ac"]
    assert list(folders_for(names, "abac", 0)) == ["ab"]
    assert list(folders_for(names, "00abff", 1)) == ["ab"]
    assert list(folders_for(names, "00", 1)) == ["ab", "ac", "b0"]
    assert list(folders_for(names, "ns_", 0)) == []
