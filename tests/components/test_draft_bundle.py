"""Bundle: models in the field pass, and what could only lose draft state is refused at start."""

from dataclasses import replace
from typing import Any

import pytest

from tests.components.declared import (
    MODELS,
    MTP,
    PAGE,
    Declaration,
    Model,
    heads,
    latents,
    rows,
    state,
)
from unikv.bundle import check_bundle
from unikv.coverage import Endpoints, EveryPage, Window
from unikv.draft import Drafter
from unikv.errors import SpecError

TARGET = Declaration(latents(range(6)))
INDEXER = Declaration(rows(range(6)), source="target")
DRAFT = Declaration(latents(range(6, 7)), source="target", packed=True)
SWA = Declaration(heads(range(6)), coverage=Window(1024))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models_in_the_field_fit_together(model: Model) -> None:
    check_bundle(*model)


def refuse(components: dict[str, Any], message: str, *drafters: Drafter) -> None:
    with pytest.raises(SpecError, match=message):
        check_bundle(components, drafters)


# Draft state that would be lost silently.


def test_an_optional_draft_in_the_transfer_of_its_target_is_refused() -> None:
    draft = DRAFT._replace(need="optional")
    refuse({"target": TARGET, "draft": draft}, "'draft' is optional: one transfer", MTP)


def test_a_draft_in_the_transfer_of_an_optional_component_is_refused() -> None:
    swa = SWA._replace(need="optional")
    draft = Declaration(heads(range(6, 7)), coverage=Window(1024), source="swa", packed=True)
    refuse({"target": TARGET, "swa": swa, "draft": draft}, "'swa' is optional", MTP)


def test_a_drafter_that_retains_more_than_the_stored_window_is_refused() -> None:
    drafter = Drafter("mtp", (), retained=3)
    refuse({"target": TARGET, "swa": SWA}, r"want Window\(tokens=1024, retained=3\)", drafter)
    check_bundle({"target": TARGET, "swa": SWA._replace(coverage=Window(1024, 3))}, [drafter])


def test_a_drafter_whose_state_no_component_stores_is_refused() -> None:
    refuse({"target": TARGET}, "'draft' of drafter 'mtp' is none of 'target'", MTP)


def test_a_packed_draft_of_no_drafter_is_refused() -> None:
    refuse({"target": TARGET, "draft": DRAFT}, "packed 'draft' belongs to no drafter")


def test_a_draft_of_every_page_whose_slots_follow_a_window_is_refused() -> None:
    draft = Declaration(heads(range(6, 7)), source="swa", packed=True)
    refuse({"swa": SWA, "draft": draft}, "needs EveryPage.* keeps only Window", MTP)
    wider = draft._replace(coverage=Window(1100))
    refuse({"swa": SWA, "draft": wider}, "needs Window.* keeps only Window", MTP)
    check_bundle({"swa": SWA, "draft": draft._replace(coverage=Window(1000))}, [MTP])


def test_a_draft_whose_indexer_stays_behind_is_refused() -> None:
    components = {"target": TARGET, "indexer": INDEXER, "draft": DRAFT}
    refuse(components, "1 draft layers ride with 'target' and 0 with 'indexer'", MTP)


def test_layer_counts_of_draft_kv_and_draft_indexer_that_differ_are_refused() -> None:
    riding = Declaration(rows(range(6, 8)), source="indexer", packed=True)
    components = {"target": TARGET, "indexer": INDEXER, "draft": DRAFT, "draft_indexer": riding}
    drafter = Drafter("mtp", ("draft", "draft_indexer"))
    refuse(components, "1 draft layers ride with 'target' and 2 with 'indexer'", drafter)


def test_draft_pools_out_of_order_are_refused() -> None:
    model = MODELS["two MTP modules with a pool each"]
    parts = dict(model.components)
    swapped = {"target": parts["target"], "draft2": parts["draft2"], "draft": parts["draft"]}
    refuse(swapped, r"as model layers \(7, 6\): want \(6, 7\) by depth", *model.drafters)


@pytest.mark.parametrize("first", [0, 5, 7], ids="from layer {}".format)
def test_draft_layers_that_are_not_next_behind_the_target_are_refused(first: int) -> None:
    draft = DRAFT._replace(spec=latents(range(first, first + 1)))
    refuse({"target": TARGET, "draft": draft}, r"want \(6,\) by depth", MTP)


def test_more_draft_layers_than_target_layers_are_refused() -> None:
    draft = DRAFT._replace(spec=latents(range(6, 13)))
    refuse({"target": TARGET, "draft": draft}, "7 draft layers ride with 6 target layers", MTP)


@pytest.mark.parametrize("name", ["target", "swa"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "sidecar"])
def test_draft_pages_of_another_size_are_refused_in_every_strategy(
    name: str,
    packed: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    host = Declaration(heads(range(6)), coverage=Window(64) if name == "swa" else EveryPage())
    draft = Declaration(
        heads(range(6, 7), PAGE // 2), coverage=host.coverage, source=name, packed=packed
    )
    refuse({name: host, "draft": draft}, f"'draft' has pages of 32 tokens and '{name}' of 64", MTP)


def test_packed_rows_of_another_number_a_page_are_refused() -> None:
    riding = Declaration(rows(range(6, 7), PAGE), source="indexer", packed=True)
    components = {"target": TARGET, "indexer": INDEXER, "draft": DRAFT, "draft_indexer": riding}
    drafter = Drafter("mtp", ("draft", "draft_indexer"))
    refuse(components, "64 rows a page and rides with 'indexer' of 1", drafter)


def test_a_draft_dealt_out_over_other_ranks_than_its_target_is_refused() -> None:
    draft = DRAFT._replace(sharded=False)
    refuse({"target": TARGET, "draft": draft}, "sharded=False and rides", MTP)


# Sources and needs of any component.


def test_a_packed_draft_without_a_source_is_refused() -> None:
    draft = DRAFT._replace(source=None)
    refuse({"target": TARGET, "draft": draft}, "has no source: want the component it rides", MTP)


def test_a_draft_that_rides_with_a_rider_is_refused() -> None:
    other = DRAFT._replace(spec=latents(range(7, 8)), source="draft")
    drafter = Drafter("mtp", ("draft", "other"))
    components = {"target": TARGET, "draft": DRAFT, "other": other}
    refuse(components, "which rides itself: want source='target'", drafter)


@pytest.mark.parametrize("source", ["taget", "indexer"], ids=["unknown", "itself"])
def test_slots_that_follow_from_nowhere_are_refused(source: str) -> None:
    indexer = INDEXER._replace(source=source)
    refuse({"target": TARGET, "indexer": indexer}, f"'indexer' follow from '{source}': want")


def test_slots_that_follow_in_a_circle_are_refused() -> None:
    one, two = TARGET._replace(source="indexer"), INDEXER
    refuse({"target": one, "indexer": two}, "'target' follow from 'indexer' from 'target'")


@pytest.mark.parametrize("need", ["optional", "maybe", None])
def test_components_of_which_none_is_required_are_refused(need: Any) -> None:
    refuse({"target": TARGET._replace(need=need)}, "want .*'required'")


def test_no_components_are_refused() -> None:
    refuse({}, "want at least one with need='required'")


def test_state_without_endpoints_is_refused() -> None:
    recurrent = Declaration(state([0, 1]), coverage=EveryPage())
    refuse({"state": recurrent}, r"kind 'state': want Endpoints\(\)")
    refuse({"target": TARGET._replace(coverage=Endpoints())}, "kind 'mla': want EveryPage")


def test_two_drafters_of_one_name_are_refused() -> None:
    components = {"target": TARGET, "draft": DRAFT}
    refuse(components, "want different names", MTP, replace(MTP, lookahead=1))
