"""Fleets of the plan tests: models by hand, topologies by text, and random ones of either."""

from itertools import pairwise
from math import lcm
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from unikv.fleet import Deployment
from unikv.spec import KVSpec
from unikv.tools.plan_choice import NoGrid, make_plan
from unikv.tools.plan_figures import PlanFigures, Prices
from unikv.tools.plan_model import Model
from unikv.topology import Topology

DOCS = Path(__file__).parents[2] / "docs" / "plan.md"
PRICES = Prices(put=0.005, get=0.0004, storage=0.023)

LLAMA = KVSpec.mha(layers=80, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=64)
SMOL = KVSpec.mha(layers=30, kv_heads=3, head_dim=64, dtype="bfloat16", page_tokens=64)
DEEPSEEK = KVSpec.mla(layers=61, dim=576, dtype="bfloat16", page_tokens=64)
HYBRID = KVSpec.mha(
    layers=8,
    kv_heads=4,
    head_dim=128,
    dtype="bfloat16",
    page_tokens=64,
    layer_ids=range(3, 32, 4),
)
LLAMA_CONFIG: dict[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 8192,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "torch_dtype": "bfloat16",
}


def fleet(writers: str, readers: str = "") -> list[Deployment]:
    """Return deployments from texts, with spaces between."""
    return [
        *(Deployment(Topology.parse(text)) for text in writers.split()),
        *(Deployment(Topology.parse(text), writes=False) for text in readers.split()),
    ]


def model(spec: KVSpec, **changes: Any) -> Model:  # Any: fields of a model
    facts: dict[str, Any] = {
        "rope": {"theta": "10000"},
        "weights": "hf:" + "ab" * 20,
        "label": "a model",
        "component": "target",
        "placeholders": (),
    }
    return Model(spec=spec, **(facts | changes))


def plan(spec: KVSpec, writers: str, readers: str = "", tokens: int = 100_000) -> PlanFigures:
    found = make_plan(model(spec), fleet(writers, readers), tokens, PRICES)
    assert isinstance(found, PlanFigures)
    return found


def refusal(spec: KVSpec, writers: str, readers: str = "") -> NoGrid:
    found = make_plan(model(spec), fleet(writers, readers), 100_000, PRICES)
    assert isinstance(found, NoGrid)
    return found


@st.composite
def specs(draw: st.DrawFn) -> KVSpec:
    """Small models of every kind that numbers can tell, whole or hybrid, in pages of 24 tokens."""
    layers = draw(st.integers(1, 12))
    ids = None
    if draw(st.booleans()):
        numbers = st.integers(0, 30)
        ids = sorted(draw(st.sets(numbers, min_size=layers, max_size=layers)))
    facts: dict[str, Any] = {"layers": layers, "page_tokens": 24, "layer_ids": ids}
    kind = draw(st.sampled_from(["mha", "mha", "mla", "rows"]))
    if kind == "mla":
        return KVSpec.mla(dim=8, dtype="int8", **facts)
    if kind == "rows":
        return KVSpec.rows(row_bytes=8, rows_per_page=draw(st.sampled_from([6, 24])), **facts)
    heads = draw(st.integers(1, 12))
    return KVSpec.mha(kv_heads=heads, head_dim=4, v_head_dim=2, dtype="int8", **facts)


@st.composite
def fitting(draw: st.DrawFn, spec: KVSpec, interleave: int) -> Topology:
    """A topology that fits the model, with stages as uneven as they come."""
    heads, end = spec.kv_heads, spec.layer_ids[-1] + 1
    right = [size for size in range(1, 2 * heads + 1) if heads % size == 0 or size % heads == 0]
    ends = sorted(draw(st.sets(st.integers(1, max(1, end - 1)), max_size=min(3, end - 1))))
    bounds = [0, *ends, end]
    table = tuple(stop - start for start, stop in pairwise(bounds))
    dcp = draw(st.sampled_from([1, 1, 2, 3, 4]))
    return Topology(
        tp=draw(st.sampled_from(right)),
        pp=len(table),
        pp_layers=table,
        cp=draw(st.sampled_from([1, 1, 2])),
        dcp=dcp,
        dcp_interleave=interleave if dcp > 1 else 1,
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[KVSpec, list[Deployment]]:
    """A model with one to four deployments that have a common cut; the first writes."""
    spec, interleave = draw(specs()), draw(st.sampled_from([1, 2]))
    assert spec.page_tokens % (lcm(2, 3, 4) * interleave) == 0
    first = Deployment(draw(fitting(spec, interleave)))
    others = st.builds(Deployment, fitting(spec, interleave), st.booleans())
    return spec, [first, *draw(st.lists(others, max_size=3))]
