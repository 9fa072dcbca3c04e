"""Inspect on a store of bundles: how complete each component is, by component."""

import json

import pytest

from tests.components.bundle_faults import Fault, spoil
from tests.components.bundle_models import GLM, SIDECARS
from tests.components.bundles import contents, filled_store, world_of
from unikv import Topology, open_store
from unikv.backends.memory import MemoryStore
from unikv.tools import cli
from unikv.tools.findings import NamespaceContent
from unikv.tools.one_page import inspect_page
from unikv.tools.survey import survey


def by_component(store: MemoryStore, *, verify: bool = False) -> dict[str, NamespaceContent]:
    found = survey(store, "memory://", verify=verify)
    return {content.namespace.component: content for content in found.namespaces}


def complete(store: MemoryStore) -> dict[str, tuple[int, int]]:
    """Return complete pages of those that are stored, by component."""
    found = by_component(store)
    return {name: (content.complete_pages, content.pages) for name, content in found.items()}


def test_each_component_is_counted_by_itself() -> None:
    store = MemoryStore()
    world_of(SIDECARS).party(store, Topology().rank()).fill().save(endpoints={4, 7})
    assert complete(store) == {"target": (7, 7), "swa": (6, 6), "draft": (6, 6), "memory": (2, 2)}
    found = by_component(store, verify=True)
    assert {name: content.verified_objects for name, content in found.items()} == {
        "target": 14,
        "swa": 12,
        "draft": 6,
        "memory": 2,
    }


@pytest.mark.parametrize("name", GLM.caches)
def test_what_one_component_lacks_is_told_of_it_alone(name: str) -> None:
    store, world = filled_store(GLM), world_of(GLM)
    spoil(world, store, Fault(name, 1, "short"))
    spoil(world, store, Fault(name, 2, "flipped"))
    found = by_component(store, verify=True)
    for other, content in found.items():
        hurt = 2 if other == name else 0
        assert (content.pages, content.complete_pages) == (4, 4 - hurt)
        assert (content.wrong_size_objects, content.damaged_objects) == (hurt // 2, hurt // 2)


def test_a_page_shows_the_components_that_it_has() -> None:
    store, world = MemoryStore(), world_of(SIDECARS)
    world.party(store, Topology().rank()).fill().save(endpoints={4, 7})
    for page, wanted in (
        (0, {"target"}),
        (1, {"target", "swa", "draft"}),
        (6, set(SIDECARS.caches)),
    ):
        found = inspect_page(store, "memory://", world.path[page])
        assert {content.namespace.component for content in found.namespaces} == wanted
        for content in found.namespaces:
            assert {chunk.state for chunk in content.chunks} == {"ok"}


def test_the_command_line_names_each_component(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path_factory.mktemp('kv')}"
    store = open_store(url)
    world_of(SIDECARS).party(store, Topology().rank()).fill().save(endpoints={7})
    assert cli.main(["inspect", url, "--verify"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = [line[1] for line in lines if line[:1] == ["component"]]
    counts = [line[1:4] for line in lines if line[:1] == ["complete"]]
    assert dict(zip(names, counts, strict=True)) == {
        "target": ["7", "of", "7"],
        "swa": ["3", "of", "3"],
        "draft": ["3", "of", "3"],
        "memory": ["1", "of", "1"],
    }
    assert cli.main(["inspect", url, "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert {n["namespace"]["component"]: n["complete_pages"] for n in read["namespaces"]} == {
        "target": 7,
        "swa": 3,
        "draft": 3,
        "memory": 1,
    }
    assert len(contents(filled_store(SIDECARS))) > read["objects"]
