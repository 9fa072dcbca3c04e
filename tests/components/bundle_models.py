"""Bundle models: the kinds of models in the field, small, with writers and readers that differ."""

from tests.components.bundle_content import Cache, Model
from tests.components.oracle import Rule
from unikv import KVSpec
from unikv.draft import Drafter
from unikv.spec import StatePart

STATE = Rule("state")


def latents(ids: range, page: int = 8, dim: int = 6) -> KVSpec:
    return KVSpec.mla(layers=len(ids), dim=dim, dtype="bfloat16", page_tokens=page, layer_ids=ids)


def heads(ids: range, page: int = 8, count: int = 4, dtype: str = "bfloat16") -> KVSpec:
    return KVSpec.mha(
        layers=len(ids),
        kv_heads=count,
        head_dim=4,
        v_head_dim=6,
        dtype=dtype,
        page_tokens=page,
        layer_ids=ids,
    )


def indexer(ids: range, page: int = 8, rows: int = 1) -> KVSpec:
    """Return rows of a page each, or of a part of one: keys of its tokens, then their scales."""
    return KVSpec.rows(
        layers=len(ids),
        row_bytes=page // rows * (16 + 4),
        rows_per_page=rows,
        page_tokens=page,
        layer_ids=ids,
    )


def recurrent(ids: list[int], page: int = 8) -> KVSpec:
    parts = [
        StatePart("conv", "bfloat16", (32, 3), (8, 8, 16)),
        StatePart("ssm", "float32", (4, 5)),
        StatePart("history", "int64", (4, 2)),
    ]
    return KVSpec.state(layers=len(ids), parts=parts, page_tokens=page, groups=4, layer_ids=ids)


def cuts(*layers: int, per: int | None = None) -> dict[str, object]:
    return {"layer_cuts": layers} | ({"heads_per_chunk": per} if per else {})


MTP = (Drafter("mtp", ("draft",), lookahead=1),)
WINDOW = Rule("window", 1024)
NARROW = Rule("window", 17, 3)  # 3 pages of 8

DSA = Model(
    {
        "target": Cache(latents(range(6)), fields=cuts(0, 3, 6)),
        "indexer": Cache(indexer(range(6)), source="target", fields=cuts(0, 3, 6)),
    },
    writer="tp2,pp2:3-3",
    readers=("tp1", "tp3,pp3:2-2-2"),
)
GLM = Model(
    {
        "target": Cache(latents(range(61), dim=2), fields=cuts(0, 31, 61)),
        "indexer": Cache(indexer(range(61)), source="target", fields=cuts(0, 31, 61)),
        "draft": Cache(latents(range(61, 62), dim=2), source="target", packed=True),
        "draft_indexer": Cache(indexer(range(61, 62)), source="indexer", packed=True),
    },
    writer="tp1,pp2:31-30",
    readers=("tp2,pp1", "tp1,pp3:20-20-21"),
    drafters=(Drafter("mtp", ("draft", "draft_indexer"), lookahead=1),),
    pages=4,
)
GEMMA = Model(
    {
        "target": Cache(heads(range(5, 6), 64), fields=cuts(0, 1, per=1)),
        "swa": Cache(heads(range(5), 64), WINDOW, fields=cuts(0, 3, 5, per=1)),
    },
    writer="tp4,pp2:3-3",
    readers=("tp1", "tp2,pp2:2-4"),
    pages=19,
)
HYBRID = Model(
    {
        "target": Cache(heads(range(3, 8, 4), count=2), fields=cuts(0, 1, 2, per=1)),
        "state": Cache(recurrent([0, 1, 2, 4, 5, 6]), STATE, fields=cuts(0, 3, 6, per=2)),
    },
    writer="tp2,pp2:4-4",
    readers=("tp1", "tp4,pp3:2-4-2"),
)
SCALED = Model(
    {
        "target": Cache(
            heads(range(4), dtype="float8_e4m3fn"),
            fields={"quant": "fp8 per head", **cuts(0, 4, per=2)},
        ),
        "scales": Cache(
            KVSpec.mha(layers=4, kv_heads=4, head_dim=1, dtype="float32", page_tokens=8),
            source="target",
            fields=cuts(0, 4, per=2),
        ),
    },
    writer="tp2,pp1",
    readers=("tp1", "tp4,pp2:1-3"),
)
PACKED = Model(
    {
        "target": Cache(latents(range(4)), fields=cuts(0, 2, 4)),
        "draft": Cache(latents(range(4, 6)), source="target", packed=True),
    },
    writer="tp1,pp2:2-2",
    readers=("tp2,pp1", "tp1,pp2:1-3"),
    drafters=MTP,
)
EAGLE = Model(
    {
        "target": Cache(latents(range(6)), fields=cuts(0, 3, 6)),
        "draft": Cache(heads(range(6, 7), count=2), need="optional", source="target"),
    },
    writer="tp1,pp2:3-3",
    readers=("tp2,pp1", "tp1,pp3:2-2-2"),
    drafters=(Drafter("eagle", ("draft",)),),
)
SIDECARS = Model(
    {
        "target": Cache(heads(range(3, 6)), fields=cuts(0, 3, per=2)),
        "swa": Cache(heads(range(3)), NARROW, fields=cuts(0, 3, per=2)),
        "draft": Cache(heads(range(6, 7)), NARROW, "optional", source="swa"),
        "memory": Cache(recurrent([7]), STATE, "optional"),
    },
    writer="tp1,pp1",
    readers=("tp2,pp1", "tp4,pp2:4-2"),
    drafters=(Drafter("eagle", ("draft",), lookahead=2, retained=3),),
    pages=7,
)

MODELS = {
    "DSA: KV and indexer": DSA,
    "GLM: 61 and 1 layers": GLM,
    "Gemma: windows of 1024": GEMMA,
    "hybrid: recurrent": HYBRID,
    "fp8 and scales": SCALED,
    "MLA and packed draft": PACKED,
    "EAGLE sidecar": EAGLE,
    "optional window and state": SIDECARS,
}
