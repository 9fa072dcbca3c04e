"""Processes: names are the same in every one, and outsiders can rebuild them from the text."""

import json
import os
import subprocess
import sys

from tests.identity.samples import make
from unikv.geometry import Interval
from unikv.keys import ObjectKey
from unikv.pages import Root, page_hashes

NAMES = """
import json, locale, sys
from unikv.hints import encode_hint
from unikv.namespace import Namespace
from unikv.pages import Extra, Root, page_hashes
try:
    locale.setlocale(locale.LC_ALL, "")
except locale.Error:
    pass
config = {
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "rope_theta": 1e5, "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.5, "type": "yarn"},
}
namespace = Namespace.from_hf_config(
    config, weights="unversioned", page_tokens=4, model="mod\\u00e8le", numerics="I\\u0130\\u0131"
)
pages = page_hashes(
    range(12), 4, Root("s\\u00e9l", "X", None, b"a tenant's secret"), extras={1: [Extra("a", b"")]}
)
bare = page_hashes(range(12), 4)
hint = encode_hint(namespace, 3).hex()
print(json.dumps([namespace.digest, namespace.family, hint, pages, bare]))
"""

ENVIRONMENTS = {
    "hash seed 1": {"PYTHONHASHSEED": "1"},
    "random hash seed": {"PYTHONHASHSEED": "random"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "Turkish": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "another rank": {"RANK": "7", "LOCAL_RANK": "3", "WORLD_SIZE": "64", "HOSTNAME": "elsewhere"},
    "another device": {"CUDA_VISIBLE_DEVICES": "3", "TZ": "Asia/Shanghai"},
}  # fmt: skip


def run(script: str, text: str = "", **environment: str) -> str:
    """Return what a clean process prints."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=text,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_B90_B91_names_are_the_same_in_every_process() -> None:
    printed = {name: run(NAMES, **changes) for name, changes in ENVIRONMENTS.items()}
    first = printed["hash seed 1"]
    assert json.loads(first)[0]
    assert printed == dict.fromkeys(printed, first)


# All that an outsider needs: the canonical text, the format's words, BLAKE3 and JSON.
OUTSIDER = """
import json, struct, sys
from blake3 import blake3
text, salt, tokens = json.load(sys.stdin)
digest = blake3(text.encode(), derive_key_context="unikv namespace v1").hexdigest(length=16)
facts = json.loads(text)
if facts["format"] != 1:
    sys.exit("unknown format")
grid, size = facts["grid"], facts["spec"]["page_tokens"]
fields = struct.pack("<BIIBI", 1, 4, size, 2, len(salt.encode())) + salt.encode()
parent = blake3(fields, derive_key_context="unikv page root v1").digest()
cuts = grid["layer_cuts"]
for page in range(len(tokens) // size):
    part = tokens[page * size : (page + 1) * size]
    parent = blake3(parent + struct.pack(f"<{size}I", *part)).digest()
    for group in range(facts["spec"]["kv_heads"] // grid["heads_per_chunk"]):
        for start, stop in zip(cuts, cuts[1:]):
            print(f"{parent.hex()}_{digest}_L{start}-{stop}_H{group}")
assert "unikv" not in sys.modules
"""


def test_B99_outsiders_rebuild_keys_from_the_canonical_text_alone() -> None:
    namespace = make(layers_per_chunk=4, heads_per_chunk=2)
    tokens = list(range(7, 7 + 16 * 10))
    keys = [
        str(ObjectKey(page, namespace.digest, Interval(start, stop), group))
        for page in page_hashes(tokens, 16, Root(salt="s"))
        for group in range(2)
        for start, stop in ((0, 4), (4, 6))
    ]
    given = json.dumps([namespace.canonical.decode(), "s", tokens])
    assert run(OUTSIDER, given).split() == keys
    assert len(keys) == 40


def test_identity_needs_neither_torch_nor_numpy() -> None:
    modules = ("canonical", "dtypes", "hf_config", "hf_rope", "hints", "keys", "namespace",
               "pages", "rope", "spec", "state", "weights")  # fmt: skip
    script = "".join(f"import unikv.{name}\n" for name in modules)
    script += "import sys\nprint({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    assert run(script).strip() == "set()"
