"""The warnings: each where it belongs, with what would be better, and not elsewhere."""

from tests.tools.plans import DEEPSEEK, LLAMA, PRICES, SMOL, fleet, model, plan
from unikv.spec import KVSpec
from unikv.tools.plan_choice import make_plan
from unikv.tools.plan_figures import PlanFigures


def warnings(figures: PlanFigures) -> dict[str, str]:
    return {one.code: one.text for one in figures.warnings}


def test_a_fleet_without_faults_has_no_warnings() -> None:
    assert warnings(plan(LLAMA, "tp4,pp2 tp2", "tp4")) == {}


def test_objects_under_two_mebibytes_are_told_with_the_page_that_helps() -> None:
    figures = plan(LLAMA, "tp8,pp2")
    told = warnings(figures)
    assert set(told) == {"under_2_mib"}
    assert "all objects of a page" in told["under_2_mib"]
    assert "--page-tokens 128 makes" in told["under_2_mib"]
    larger = KVSpec.mha(layers=80, kv_heads=8, head_dim=128, dtype="bfloat16", page_tokens=128)
    assert warnings(plan(larger, "tp8,pp2")) == {}


def test_of_uneven_cuts_only_the_small_objects_count() -> None:
    told = warnings(plan(LLAMA, "tp1,pp2:76-4"))
    assert "1 of 2 objects of a page are under 2.0 MiB" in told["under_2_mib"]
    assert "chunks of 4 to 76 layers" in told["ragged_cuts"]


def test_objects_under_sixty_four_kibibytes_are_told_too() -> None:
    told = warnings(plan(SMOL, "tp3,pp10"))
    assert {"under_2_mib", "under_64_kib"} <= set(told)
    assert "--page-tokens 128 makes" in told["under_64_kib"]


def test_stages_that_differ_by_one_layer_are_not_ragged() -> None:
    assert "ragged_cuts" not in warnings(plan(DEEPSEEK, "tp1,pp2:31-30"))
    assert "ragged_cuts" in warnings(plan(LLAMA, "tp1,pp2 tp1,pp3:27-27-26"))


def test_replicas_are_told_who_writes() -> None:
    text = warnings(plan(SMOL, "tp6", "tp12"))["replicas"]
    assert "replicated heads: tp6,pp1 on 2 ranks, tp12,pp1 on 4 ranks" in text
    assert 'writers="striped"' in text
    assert "sharded=True" not in text
    text = warnings(plan(SMOL, "tp3", "tp6"))["replicas"]
    assert "writers=" not in text


def test_latents_are_replicas_of_all_tensor_ranks() -> None:
    text = warnings(plan(DEEPSEEK, "tp16 tp1"))["replicas"]
    assert "replicated latents: tp16,pp1 on 16 ranks" in text
    assert "Component(..., sharded=True)" in text
    assert "sharded=True" not in warnings(plan(DEEPSEEK, "tp16,cp2"))["replicas"]


def test_many_objects_name_the_deployment_with_the_finest_grid() -> None:
    text = warnings(plan(LLAMA, "tp8,pp10 tp1"))["many_objects"]
    assert "80 objects a page (10 layer cuts x 8 head groups x 1 phase)" in text
    assert "tp8,pp10" in text
    assert "many_objects" not in warnings(plan(LLAMA, "tp8,pp8"))


def test_read_amplification_is_told_of_whom_it_befalls() -> None:
    spec = KVSpec.mha(layers=40, kv_heads=12, head_dim=128, dtype="bfloat16", page_tokens=64)
    text = warnings(plan(spec, "tp3", "tp4 tp6"))["read_amplification"]
    assert "tp4,pp1 reads 2.00 bytes" in text
    assert "worst rank 2.67" in text


def test_a_prompt_shorter_than_a_page_is_told() -> None:
    assert set(warnings(plan(LLAMA, "tp1", tokens=63))) == {"short_prompt"}
    assert warnings(plan(LLAMA, "tp1", tokens=64)) == {}


def test_a_long_text_is_told_before_it_is_too_long() -> None:
    spec = KVSpec.mha(layers=420, kv_heads=1, head_dim=2048, dtype="bfloat16", page_tokens=256)
    figures = plan(spec, f"pp2 pp{420 // 2}")
    assert figures.namespace_text_bytes < 3600
    assert "long_text" not in warnings(figures)
    figures = plan(spec, "pp420")
    assert 3600 < figures.namespace_text_bytes <= 4000
    assert "at most 4,000" in warnings(figures)["long_text"]


def test_placeholders_are_told() -> None:
    some = model(LLAMA, weights="unversioned", rope="none", placeholders=("weights", "rope"))
    figures = make_plan(some, fleet("tp1"), 100, PRICES)
    assert isinstance(figures, PlanFigures)
    assert set(warnings(figures)) == {"placeholder_weights", "placeholder_rope"}
