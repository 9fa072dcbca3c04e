"""Foreign objects: whole, well-made bytes that are not what was asked for; ranges of them."""

from hashlib import sha256
from struct import pack_into

import pytest
from xxhash import xxh3_64_intdigest

from unikv.errors import FormatError
from unikv.namespace import Namespace
from unikv.objects import ObjectFormat, parse_header
from unikv.spec import KVSpec

SPEC = KVSpec.mha(layers=8, kv_heads=2, head_dim=4, dtype="float16", page_tokens=2)
NAMESPACE = Namespace(spec=SPEC, weights="unversioned", model="toy", rope="none", heads_per_chunk=1)
FORM = ObjectFormat.of(NAMESPACE)
FIRST, SECOND = FORM.grid.chunks
SIZE, SLAB = FORM.header_bytes, FIRST.slab_bytes


def page_of(number: int) -> str:
    return sha256(str(number).encode()).hexdigest()


def make_read(number: int, group: int = 0) -> bytearray:
    """Make header and payload of one page's chunk; every byte of it depends on the page."""
    chunk = FORM.grid.chunks[group]
    filler = bytes.fromhex(page_of(number)) + bytes([group])
    payload = (filler * chunk.payload_bytes)[: chunk.payload_bytes]
    header, _ = FORM.encode(page_of(number), chunk, payload)
    return bytearray(header + payload)


def reseal(data: bytearray, key: str) -> None:
    """Fit the header's tag to its bytes, as any program can where tags are not keyed."""
    seed = (xxh3_64_intdigest(key.encode()) + 2**34) % 2**64
    pack_into("<Q", data, SIZE - 8, xxh3_64_intdigest(bytes(data[: SIZE - 8]), seed))


def test_B57_a_range_read_sees_the_damage_in_it_and_no_other() -> None:
    data = make_read(1)
    data[SIZE + 5 * SLAB + 3] ^= 0x08
    upper = memoryview(data[:SIZE] + data[SIZE + 4 * SLAB :])
    damage = FORM.check(page_of(1), FIRST, upper, 4, 4)
    assert damage is not None
    assert damage.where == "slab 5"
    lower = memoryview(data[: SIZE + 4 * SLAB])
    assert FORM.check(page_of(1), FIRST, lower, 0, 4) is None
    whole = FORM.check(page_of(1), FIRST, memoryview(data))
    assert whole is not None
    assert whole.where == "slab 5"
    assert str(whole).startswith(f"slab 5 of object {FORM.key(page_of(1), FIRST)}: ")


@pytest.mark.parametrize(
    "byte",
    [SIZE + 3 * SLAB + 1, 40, SIZE - 16],
    ids=["payload", "header", "padding"],
)
def test_B56_one_bit_in_payload_header_or_padding_is_damage(byte: int) -> None:
    data = make_read(1)
    data[byte] ^= 0x01
    damage = FORM.check(page_of(1), FIRST, memoryview(data))
    assert damage is not None
    assert damage.where == ("slab 3" if byte >= SIZE else "header")


def test_B07_an_object_of_another_format_version_is_named_with_both_versions() -> None:
    data = make_read(1)
    pack_into("<H", data, 8, 2)
    reseal(data, FORM.key(page_of(1), FIRST))
    damage = FORM.check(page_of(1), FIRST, memoryview(data))
    assert damage is not None
    assert damage.where == "header"
    assert damage.detail == "format version 2: this reader knows version 1"
    with pytest.raises(FormatError, match=r"format version 2.*version 1"):
        parse_header(data)


def test_B48_every_object_answers_to_its_own_key_only() -> None:
    reads = [make_read(number) for number in range(100)]
    for number, data in enumerate(reads):
        assert FORM.check(page_of(number), FIRST, memoryview(data)) is None
        asked = page_of((number + 1) % 100)
        damage = FORM.check(asked, FIRST, memoryview(data))
        assert damage is not None
        assert damage.detail == f"page {page_of(number)}, want {asked}"
        assert damage.key == FORM.key(asked, FIRST)


def test_the_other_head_group_of_the_page_is_no_substitute() -> None:
    damage = FORM.check(page_of(1), SECOND, memoryview(make_read(1, group=0)))
    assert damage is not None
    assert damage.detail == "group 0, want 1"


def test_slabs_of_another_page_fail_under_a_header_that_was_made_for_them() -> None:
    """Seeds hold the key: a foreign slab fails even where somebody fixed the header around it."""
    data = make_read(1)
    data[32:64] = bytes.fromhex(page_of(2))
    reseal(data, FORM.key(page_of(2), FIRST))
    damage = FORM.check(page_of(2), FIRST, memoryview(data))
    assert damage is not None
    assert damage.where == "slab 0"


def test_the_header_of_another_key_fails_even_with_every_field_put_right() -> None:
    data = make_read(1)
    data[32:64] = bytes.fromhex(page_of(2))
    damage = FORM.check(page_of(2), FIRST, memoryview(data))
    assert damage is not None
    assert (damage.where, damage.detail) == ("header", "it does not fit its tag")


@pytest.mark.parametrize(
    ("offset", "code", "value", "detail"),
    [
        (0, "<B", 0x88, r"no unikv object: begins with b'\x88UKV\r\n\x1a\n', want "),
        (10, "<H", 0x10, "flags 16, want 0"),
        (12, "<I", 1024, "header size 1024, want 512"),
        (16, "<B", 0x00, "namespace "),
        (100, "<I", 1, "layer start 1, want 0"),
        (104, "<I", 9, "layer stop 9, want 8"),
        (108, "<I", 1, "group 1, want 0"),
        (112, "<I", 0, "phase 0, want none"),
        (116, "<I", 9, "slabs 9, want 8"),
        (120, "<Q", 2**63, f"payload length {2**63}, want {FIRST.payload_bytes}"),
        (136, "<B", 1, "reserved bytes are not zero"),
        (168 + 16 * 3, "<I", 2**31, f"stored length of slab 3 {2**31}, want {SLAB}"),
        (172, "<I", 1, "reserved bytes are not zero"),
        (160 + 16 * 8, "<B", 1, "reserved bytes are not zero"),
    ],
)
def test_every_field_is_compared_even_where_the_tag_was_made_to_fit(
    offset: int, code: str, value: int, detail: str
) -> None:
    data = make_read(1)
    pack_into(code, data, offset, value)
    reseal(data, FORM.key(page_of(1), FIRST))
    damage = FORM.check(page_of(1), FIRST, memoryview(data))
    assert damage is not None
    assert damage.where == "header"
    assert damage.detail.startswith(detail)


@pytest.mark.parametrize(("offset", "code"), [(64, "<B"), (96, "<I")], ids=["parent", "index"])
def test_parent_and_page_index_are_covered_but_not_compared(offset: int, code: str) -> None:
    data = make_read(1)
    pack_into(code, data, offset, 5)
    assert FORM.check(page_of(1), FIRST, memoryview(data)) is not None
    reseal(data, FORM.key(page_of(1), FIRST))
    assert FORM.check(page_of(1), FIRST, memoryview(data)) is None


def test_a_payload_tag_that_contradicts_fitting_slabs_is_damage_of_the_payload() -> None:
    data = make_read(1)
    data[128] ^= 1
    reseal(data, FORM.key(page_of(1), FIRST))
    damage = FORM.check(page_of(1), FIRST, memoryview(data))
    assert damage is not None
    assert damage.where == "payload"
