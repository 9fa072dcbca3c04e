"""Declared: components of the kinds of models in the field, small, as a client would have them."""

from typing import NamedTuple

from unikv.bundle import Bundle, Need
from unikv.coverage import Coverage, Endpoints, EveryPage, Window
from unikv.draft import Drafter
from unikv.spec import KVSpec, StatePart

PAGE = 64


class Declaration(NamedTuple):
    spec: KVSpec
    need: Need = "required"
    coverage: Coverage = EveryPage()
    source: str | None = None
    packed: bool = False
    sharded: bool | None = None


class Model(NamedTuple):
    components: Bundle
    drafters: tuple[Drafter, ...] = ()


def latents(ids: range, page_tokens: int = PAGE) -> KVSpec:
    return KVSpec.mla(
        layers=len(ids), dim=24, dtype="bfloat16", page_tokens=page_tokens, layer_ids=ids
    )


def heads(ids: range, page_tokens: int = PAGE) -> KVSpec:
    return KVSpec.mha(
        layers=len(ids),
        kv_heads=2,
        head_dim=8,
        dtype="bfloat16",
        page_tokens=page_tokens,
        layer_ids=ids,
    )


def rows(ids: range, rows_per_page: int = 1) -> KVSpec:
    return KVSpec.rows(
        layers=len(ids),
        row_bytes=132,
        rows_per_page=rows_per_page,
        page_tokens=PAGE,
        layer_ids=ids,
    )


def state(ids: list[int]) -> KVSpec:
    parts = [StatePart("conv", "bfloat16", (8, 3)), StatePart("ssm", "float32", (4, 6))]
    return KVSpec.state(layers=len(ids), parts=parts, page_tokens=PAGE, layer_ids=ids)


MTP = Drafter("mtp", ("draft",))

MODELS = {
    "DSA: KV and indexer": Model(
        {
            "target": Declaration(latents(range(6))),
            "indexer": Declaration(rows(range(6)), source="target"),
        }
    ),
    "DSA with MTP: 6 layers and 1, each with its indexer": Model(
        {
            "target": Declaration(latents(range(6))),
            "indexer": Declaration(rows(range(6)), source="target"),
            "draft": Declaration(latents(range(6, 7)), source="target", packed=True),
            "draft_indexer": Declaration(rows(range(6, 7)), source="indexer", packed=True),
        },
        (Drafter("mtp", ("draft", "draft_indexer"), lookahead=1),),
    ),
    "sliding and full layers": Model(
        {
            "target": Declaration(heads(range(5, 6))),
            "swa": Declaration(heads(range(5)), coverage=Window(1024)),
        }
    ),
    "sliding layers with drafts packed into them": Model(
        {
            "target": Declaration(heads(range(4, 6))),
            "swa": Declaration(heads(range(4)), coverage=Window(1024, 3)),
            "draft": Declaration(
                heads(range(6, 8)), coverage=Window(1024, 3), source="swa", packed=True
            ),
        },
        (Drafter("mtp", ("draft",), lookahead=2, retained=3),),
    ),
    "recurrent: every 4th layer attention": Model(
        {
            "target": Declaration(heads(range(3, 8, 4))),
            "state": Declaration(state([0, 1, 2, 4, 5, 6]), coverage=Endpoints()),
        }
    ),
    "two MTP modules with a pool each": Model(
        {
            "target": Declaration(latents(range(6))),
            "draft": Declaration(latents(range(6, 7)), source="target", packed=True),
            "draft2": Declaration(latents(range(7, 8)), source="target", packed=True),
        },
        (Drafter("mtp", ("draft", "draft2"), lookahead=1),),
    ),
    "EAGLE sidecar": Model(
        {
            "target": Declaration(latents(range(6))),
            "indexer": Declaration(rows(range(6)), source="target"),
            "draft": Declaration(heads(range(2)), need="optional", source="target"),
        },
        (Drafter("eagle", ("draft",)),),
    ),
    "MTP packed beside an EAGLE sidecar": Model(
        {
            "target": Declaration(latents(range(6))),
            "draft": Declaration(latents(range(6, 7)), source="target", packed=True),
            "eagle": Declaration(heads(range(9)), need="optional", source="target"),
        },
        (MTP, Drafter("eagle", ("eagle",), lookahead=3)),
    ),
    "n-gram drafter without state": Model(
        {"target": Declaration(heads(range(6)))}, (Drafter("ngram", (), lookahead=4),)
    ),
}
