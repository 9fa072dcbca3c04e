"""The snippet to paste: Python that makes the namespace of the plan, whatever the plan."""

from typing import Any

import pytest
from hypothesis import given

from tests.tools.plans import DEEPSEEK, HYBRID, LLAMA, LLAMA_CONFIG, fleet, fleets, model, plan
from unikv.fleet import Deployment, common_cut
from unikv.namespace import Namespace
from unikv.spec import KVSpec
from unikv.tools.plan_model import Model
from unikv.tools.plan_snippet import write_snippet


def execute(snippet: str) -> Namespace:
    made: dict[str, Any] = {}
    exec(snippet, made)
    found = made["namespace"]
    assert isinstance(found, Namespace)
    return found


def snippet_of(some: Model, writers: str) -> tuple[str, Namespace]:
    namespace = some.namespace(some.spec, common_cut(some.spec, fleet(writers)))
    return write_snippet(namespace, some.placeholders), namespace


@given(fleets())
def test_the_snippet_makes_the_namespace_of_any_fleet(
    drawn: tuple[KVSpec, list[Deployment]],
) -> None:
    spec, some = drawn
    namespace = model(spec).namespace(spec, common_cut(spec, some))
    assert execute(write_snippet(namespace, ())) == namespace


LONG = {"rope_type": "longrope", "theta": "10000", "short_factor": "blake3:" + "0f" * 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"label": 'it\'s "quoted" \\ and long' * 5},
        {"label": "模型", "component": "draft", "placeholders": ("weights", "rope")},
        {"weights": "unversioned", "placeholders": ("weights",)},
        {"rope": {"full_attention": LONG, "sliding_attention": {"theta": "1", "on": True}}},
        {"rope": "none"},
        {"rope": {"theta": "1", "mrope_section": ["16", "24", "24"]}},
    ],
    ids=str,
)
def test_labels_and_rope_of_every_form_survive(changes: dict[str, Any]) -> None:
    snippet, namespace = snippet_of(model(LLAMA, **changes), "tp4,pp2")
    made = execute(snippet)
    assert (made, made.model) == (namespace, namespace.model)
    for name in changes.get("placeholders", ()):
        assert "  # a placeholder: want" in snippet.split(f"    {name}=")[1].splitlines()[0]


def test_a_config_becomes_a_snippet_that_needs_no_config() -> None:
    cut = common_cut(LLAMA, fleet("tp4,pp2"))
    facts: dict[str, Any] = {"weights": "hf:" + "12" * 20, "page_tokens": 64, "model": "Llama"}
    namespace = Namespace.from_hf_config(LLAMA_CONFIG, **facts, **cut._asdict())
    assert execute(write_snippet(namespace, ())) == namespace


def test_even_cuts_are_one_number_and_defaults_are_left_out() -> None:
    snippet = plan(LLAMA, "tp4,pp2").snippet
    assert "layers_per_chunk=40" in snippet
    assert not any(word in snippet for word in ("layer_cuts", "phases", "component", "v_head_dim"))
    assert "layers_per_chunk=31" in plan(DEEPSEEK, "pp2:31-30").snippet
    assert "layer_cuts=(0, 30, 61)" in plan(DEEPSEEK, "pp2:30-31").snippet
    assert "layer_ids=range(3, 32, 4)" in plan(HYBRID, "tp1").snippet


def test_no_line_passes_a_hundred_columns() -> None:
    snippet = plan(LLAMA, f"pp80 {' '.join(f'pp2:{n}-{80 - n}' for n in range(1, 20))}").snippet
    snippet += plan(LLAMA, f"pp60:{'-'.join(['1'] * 40 + ['2'] * 20)}").snippet
    assert max(map(len, snippet.splitlines())) <= 100
