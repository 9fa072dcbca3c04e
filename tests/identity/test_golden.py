"""Golden vectors: what identity was made of on the day it was frozen. They are never edited."""

import json
from pathlib import Path
from typing import Any

import pytest

from unikv.canonical import hash_text
from unikv.errors import KeyFormatError
from unikv.geometry import Interval
from unikv.keys import ObjectKey
from unikv.namespace import Namespace
from unikv.pages import Extra, Root, page_hashes
from unikv.spec import KVSpec, StatePart

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = "files:" + "9f" * 32
COMMIT = "hf:" + "0123456789" * 4
GQA = KVSpec.mha(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", page_tokens=64)
HYBRID = KVSpec.mha(
    layers=4, kv_heads=2, head_dim=16, v_head_dim=8, dtype="float8_e4m3fn", page_tokens=16,
    layer_ids=(3, 7, 11, 15),
)  # fmt: skip
LATENT = KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=64)
INDEXER = KVSpec.rows(layers=5, row_bytes=132, rows_per_page=64, page_tokens=64)
STATE = KVSpec.state(
    layers=3,
    parts=[
        StatePart("conv", "bfloat16", (32, 3), (8, 8, 16)),
        StatePart("ssm", "float32", (4, 16, 8)),
    ],
    page_tokens=64,
    groups=4,
)  # fmt: skip
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0}
LONG = {"type": "longrope", "factor": 32.0, "short_factor": [1.05] * 48, "long_factor": [9] * 48}
BUILT: dict[str, dict[str, Any]] = {
    "README": {
        "spec": GQA, "weights": FILES, "rope": {"theta": 100000.0}, "model": "SmolLM2-135M",
        "layers_per_chunk": 15, "heads_per_chunk": 1,
    },
    "sibling": {"spec": GQA, "weights": FILES, "rope": {"theta": 1e5}, "layer_cuts": (0, 11, 30)},
    "latents": {"spec": LATENT, "weights": COMMIT, "rope": {"theta": 1e4} | YARN, "phases": 4,
                "interleave": 16, "tags": "blake3_keyed"},
    "indexer": {"spec": INDEXER, "weights": COMMIT, "rope": {"theta": 1e4}, "component": "indexer"},
    "state": {"spec": STATE, "weights": COMMIT, "rope": "none", "component": "state",
              "heads_per_chunk": 2},
    "hybrid": {"spec": HYBRID, "weights": COMMIT, "quant": "fp8-per-tensor", "scales": "ab" * 32,
               "rope": {"full_attention": {"theta": 1e6} | LONG, "sliding_attention": None}},
    "unversioned": {"spec": GQA, "weights": "unversioned", "rope": {"theta": 1e5},
                    "model": "mode\u0300le/@_.. \u65e5\u672c", "numerics": 'a "b" \\ c'},
}  # fmt: skip


def load(name: str) -> Any:  # Any: JSON
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


NAMESPACES = {vector["name"]: vector for vector in load("namespaces.json")}
PAGES = {vector["name"]: vector for vector in load("pages.json")}
KEYS = load("keys.json")


def test_every_vector_is_built() -> None:
    assert list(NAMESPACES) == list(BUILT)


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_is_what_it_was(name: str) -> None:
    vector = NAMESPACES[name]
    for namespace in (Namespace(**BUILT[name]), Namespace.parse(vector["text"].encode())):
        assert namespace.canonical.decode() == vector["text"]
        assert namespace.digest == vector["digest"]
        assert namespace.family == vector["family"]


@pytest.mark.parametrize("name", NAMESPACES)
def test_digest_and_family_follow_from_the_text_alone(name: str) -> None:
    vector = NAMESPACES[name]
    assert hash_text(vector["text"].encode(), "unikv namespace v1") == vector["digest"]
    facts = json.loads(vector["text"])
    for cut in ("codec", "grid", "layout"):
        del facts[cut]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hash_text(text.encode(), "unikv family v1") == vector["family"]


def test_siblings_share_their_family() -> None:
    assert NAMESPACES["README"]["family"] == NAMESPACES["sibling"]["family"]
    assert len({vector["family"] for vector in NAMESPACES.values()}) == len(NAMESPACES) - 1


@pytest.mark.parametrize("name", PAGES)
def test_B90_page_hashes_are_what_they_were(name: str) -> None:
    vector = PAGES[name]
    salt, secret = vector.get("salt"), vector.get("secret_hex")
    root = Root(
        salt=bytes.fromhex(vector["salt_hex"]) if "salt_hex" in vector else salt,
        adapter=vector.get("adapter"),
        adapter_digest=vector.get("adapter_digest"),
        secret=None if secret is None else bytes.fromhex(secret),
    )
    extras = {
        int(page): [Extra(tag, bytes.fromhex(value)) for tag, value in items]
        for page, items in vector.get("extras", {}).items()
    }
    names = page_hashes(vector["tokens"], vector["page_tokens"], root, vector.get("parent"), extras)
    assert names == vector["hashes"]


def test_page_vectors_meet_where_they_must_and_nowhere_else() -> None:
    bare = PAGES["bare"]["hashes"]
    assert PAGES["goes on"]["hashes"] == bare[1:]
    assert PAGES["tail left out"]["hashes"] == bare[:2]
    assert PAGES["extras"]["hashes"][0] == bare[0]  # theirs fall in the second page
    meeting = ("goes on", "tail left out")
    others = [name for key, v in PAGES.items() if key not in meeting for name in v["hashes"]]
    assert len(set(others)) == len(others) - 1


@pytest.mark.parametrize("vector", KEYS["keys"], ids=lambda vector: vector["text"][97:])
def test_a_key_is_what_it_was(vector: dict[str, Any]) -> None:
    layers = Interval(*vector["layers"])
    key = ObjectKey(vector["page"], vector["namespace"], layers, vector["group"], vector["phase"])
    assert str(key) == vector["text"]
    assert ObjectKey.parse(vector["text"]) == key


@pytest.mark.parametrize("text", KEYS["wrong"])
def test_a_text_that_was_no_key_is_none(text: str) -> None:
    with pytest.raises(KeyFormatError):
        ObjectKey.parse(text)
