"""Tags: the two algorithms against their definitions, seeds, and what keyed tags keep out."""

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from unikv.errors import SpecError
from unikv.namespace import TAG_ALGORITHMS, Namespace
from unikv.objects import ObjectFormat
from unikv.spec import KVSpec
from unikv.tags import TAG_NUMBERS, key_seed, tag_function

KEY = b"sixteen bytes or"
OTHER_KEY = b"another sixteen!"
PAGE = "0123456789abcdef" * 4


def make_namespace(tags: str) -> Namespace:
    return Namespace(
        spec=KVSpec.mla(layers=4, dim=8, dtype="int8", page_tokens=2),
        weights="unversioned",
        model="toy",
        rope="none",
        tags=tags,
    )


def make_object(form: ObjectFormat) -> tuple[bytes, bytes, bytes]:
    chunk = form.grid.chunks[0]
    payload = bytes(range(chunk.payload_bytes))
    header, description = form.encode(PAGE, chunk, payload)
    return header, payload, description


u64 = st.integers(0, 2**64 - 1)


@given(st.binary(max_size=600), u64)
def test_xxh3_64_is_the_seeded_hash(data: bytes, seed: int) -> None:
    assert tag_function("xxh3_64")(memoryview(data), seed) == xxh3_64_intdigest(data, seed)


@given(st.binary(max_size=600), u64, st.binary(min_size=16, max_size=100))
def test_blake3_keyed_is_keyed_over_seed_and_data(data: bytes, seed: int, key: bytes) -> None:
    derived = blake3(key, derive_key_context="unikv tag key v1").digest()
    full = blake3(seed.to_bytes(8, "little") + data, key=derived).digest()
    expected = int.from_bytes(full[:8], "little")
    assert tag_function("blake3_keyed", key)(memoryview(data), seed) == expected


def test_the_namespace_and_the_header_know_the_same_algorithms() -> None:
    assert set(TAG_NUMBERS) == set(TAG_ALGORITHMS)


def test_seeds_wrap_at_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unikv.objects.key_seed", lambda _: 2**64 - 1)
    form = ObjectFormat.of(make_namespace("xxh3_64"))
    chunk = form.grid.chunks[0]
    header, payload, description = make_object(form)
    slab = chunk.slab_bytes
    second = int.from_bytes(header[176:184], "little")
    assert second == xxh3_64_intdigest(payload[slab : 2 * slab], 0)
    assert int.from_bytes(header[128:136], "little") == xxh3_64_intdigest(payload, 2**32 - 1)
    assert int.from_bytes(header[-8:], "little") == xxh3_64_intdigest(header[:-8], 2**34 - 1)
    text_tag = xxh3_64_intdigest(description[:-8], 2**33 - 1)
    assert int.from_bytes(description[-8:], "little") == text_tag
    assert form.check(PAGE, chunk, memoryview(header + payload)) is None
    upper = memoryview(header + payload[slab:])
    assert form.check(PAGE, chunk, upper, 1, 3) is None
    assert form.check_object(form.key(PAGE, chunk), header + payload + description) == []


def test_equal_slabs_have_different_tags_in_each_place_and_under_each_key() -> None:
    form = ObjectFormat.of(make_namespace("xxh3_64"))
    chunk = form.grid.chunks[0]
    tags = set()
    for page in (PAGE, PAGE[::-1]):
        header, _ = form.encode(page, chunk, bytes(chunk.payload_bytes))
        tags |= {header[160 + 16 * i : 168 + 16 * i] for i in range(chunk.slabs)}
    assert len(tags) == 2 * chunk.slabs


def test_tags_made_with_another_key_fail_everywhere() -> None:
    namespace = make_namespace("blake3_keyed")
    ours, theirs = ObjectFormat.of(namespace, KEY), ObjectFormat.of(namespace, OTHER_KEY)
    chunk = ours.grid.chunks[0]
    header, payload, description = make_object(theirs)
    damage = ours.check(PAGE, chunk, memoryview(header + payload))
    assert damage is not None
    assert damage.where == "header"
    found = ours.check_object(ours.key(PAGE, chunk), header + payload + description)
    assert [one.where for one in found] == [
        "header",
        *(f"slab {i}" for i in range(chunk.slabs)),
        "description",
    ]


def test_a_forger_without_the_key_gets_no_slab_past_a_keyed_check() -> None:
    form = ObjectFormat.of(make_namespace("blake3_keyed"), KEY)
    chunk = form.grid.chunks[0]
    header, payload, _ = make_object(form)
    forged = bytes(reversed(payload))
    seed = key_seed(form.key(PAGE, chunk))
    head = bytearray(header)
    head[128:136] = xxh3_64_intdigest(forged, (seed + 2**32) % 2**64).to_bytes(8, "little")
    head[-8:] = xxh3_64_intdigest(bytes(head[:-8]), (seed + 2**34) % 2**64).to_bytes(8, "little")
    assert form.check(PAGE, chunk, memoryview(bytes(head) + forged)) is not None
    assert form.check(PAGE, chunk, memoryview(header + forged)) is not None


def test_no_message_or_repr_tells_a_key_or_a_right_tag() -> None:
    form = ObjectFormat.of(make_namespace("blake3_keyed"), KEY)
    chunk = form.grid.chunks[0]
    header, payload, description = make_object(form)
    bad = memoryview(header + bytes(len(payload)))
    texts = [repr(form), str(form.check(PAGE, chunk, bad))]
    found = form.check_object(form.key(PAGE, chunk), header + bytes(len(payload)) + description)
    texts += map(str, found)
    seed = key_seed(form.key(PAGE, chunk))
    right = tag_function("blake3_keyed", KEY)(bytes(chunk.slab_bytes), seed)
    secrets = [KEY.decode(), KEY.hex(), str(right), f"{right:x}"]
    assert not [secret for secret in secrets for text in texts if secret in text]


@pytest.mark.parametrize(
    ("tag_key", "given"),
    [(None, "NoneType"), (b"", "0 bytes"), (b"short", "5 bytes"), ("a text of 17 bytes", "str")],
)
def test_keyed_tags_without_a_proper_key_are_a_spec_error(tag_key: bytes, given: str) -> None:
    with pytest.raises(SpecError, match=f"tag_key of {given}: tags='blake3_keyed' wants 16"):
        ObjectFormat.of(make_namespace("blake3_keyed"), tag_key)


def test_a_key_that_nothing_would_use_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match="tag_key was given, but tags='xxh3_64' takes none"):
        ObjectFormat.of(make_namespace("xxh3_64"), KEY)


def test_an_unknown_algorithm_is_a_spec_error() -> None:
    with pytest.raises(SpecError, match="tags 'crc32': want one of xxh3_64, blake3_keyed"):
        tag_function("crc32")
