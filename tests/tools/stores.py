"""Stores: small stores of each kind, written object by object. They need no torch."""

from collections.abc import Callable, Sequence

from unikv import KVSpec, Namespace, page_hashes
from unikv.hints import announce
from unikv.objects import ObjectFormat
from unikv.spec import StatePart
from unikv.store import Item, Span, Store

WEIGHTS = "hf:" + "ab" * 20
TAG_KEY = b"a secret of more than sixteen bytes"

MHA = Namespace(
    spec=KVSpec.mha(
        layers=4, kv_heads=2, head_dim=4, v_head_dim=8, dtype="bfloat16", page_tokens=16
    ),
    weights=WEIGHTS,
    model="Tiny 4L",
    rope={"rope_type": "llama3", "theta": 500000.0, "factor": 8},
    layer_cuts=(0, 3, 4),
    heads_per_chunk=1,
)
MLA = Namespace(
    spec=KVSpec.mla(layers=3, dim=20, dtype="float16", page_tokens=16, layer_ids=[3, 7, 11]),
    weights="unversioned",
    model="latent one",
    rope={"theta": 10000},
    layers_per_chunk=1,
    phases=2,
    interleave=8,
)
ROWS = Namespace(
    spec=KVSpec.rows(layers=2, row_bytes=132, rows_per_page=4, page_tokens=16),
    weights=WEIGHTS,
    component="indexer",
    rope="none",
)
STATE = Namespace(
    spec=KVSpec.state(
        layers=2,
        parts=[
            StatePart("conv", "bfloat16", (16, 3), (4, 4, 8)),
            StatePart("ssm", "float32", (4, 5)),
        ],
        page_tokens=16,
        groups=4,
    ),
    weights=WEIGHTS,
    component="state",
    rope="none",
    heads_per_chunk=2,
)
KEYED = Namespace(
    spec=KVSpec.mla(layers=2, dim=8, dtype="bfloat16", page_tokens=16),
    weights=WEIGHTS,
    model="guarded",
    rope="none",
    tags="blake3_keyed",
)
NAMESPACES = {"mha": MHA, "mla": MLA, "rows": ROWS, "state": STATE}

PAGES = page_hashes(range(64), 16)


def write(
    store: Store,
    namespace: Namespace,
    pages: Sequence[str] = PAGES,
    *,
    hint: bool = True,
    tag_key: bytes | None = None,
) -> list[str]:
    """Store all chunks of the pages; return their keys in order of page and chunk."""
    form = ObjectFormat.of(namespace, tag_key)
    if hint:
        announce(store, namespace)
    keys = []
    for index, page in enumerate(pages):
        for chunk in form.grid.chunks:
            payload = bytes((index + chunk.index + i) % 251 for i in range(chunk.payload_bytes))
            header, description = form.encode(
                page,
                chunk,
                payload,
                parent=pages[index - 1] if index else None,
                page_index=index,
            )
            keys.append(form.key(page, chunk))
            store.put([Item(keys[-1], [header, payload, description])])
    return keys


def read(store: Store, key: str) -> bytes:
    """Return the bytes of an object."""
    size = store.stat([key])[0]
    assert size is not None
    data = bytearray(size)
    assert store.get([Span(key, 0, size, [memoryview(data)])]).ok
    return bytes(data)


def change(store: Store, key: str, how: Callable[[bytearray], object]) -> None:
    """Replace an object by what ``how`` makes of its bytes, in place or as a result."""
    data = bytearray(read(store, key))
    changed = how(data)
    item = Item(key, [changed if isinstance(changed, bytes | bytearray) else data])
    assert store.put([item], replace=True).ok


def flip(at: int) -> Callable[[bytearray], None]:
    """Return a change of one bit of the byte at a place, which may count from the end."""

    def flipped(data: bytearray) -> None:
        data[at] ^= 1

    return flipped
