"""Bundle: whether components fit together, asked once at start. It knows no store and no pool.

What it refuses would save and load without an error and lose state: nobody would see it but in
the text that a model writes, or in the tokens that its drafter no longer guesses.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from unikv.coverage import Coverage, Window, choose_coverage, covers
from unikv.draft import Drafter, check_drafters, draft_layer_ids, pack_layers, retained
from unikv.errors import SpecError
from unikv.spec import KVSpec

Need: TypeAlias = Literal["required", "optional"]


class Declared(Protocol):
    """A component as it was declared."""

    @property
    def spec(self) -> KVSpec:
        """The facts of its bytes."""

    @property
    def need(self) -> Need:
        """Whether a page is of use without it."""

    @property
    def coverage(self) -> Coverage:
        """Which of its pages an endpoint needs."""

    @property
    def source(self) -> str | None:
        """The component that its slots follow from; None where it has its own."""

    @property
    def packed(self) -> bool:
        """Whether its layers ride with the first layers of its source."""

    @property
    def sharded(self) -> bool | None:
        """Which ranks own a page of it; see `Rank.shard`."""


Bundle: TypeAlias = Mapping[str, Declared]


def check_bundle(components: Bundle, drafters: Sequence[Drafter] = ()) -> None:
    """Refuse components that do not fit together, or that could only lose state silently.

    Raises:
        SpecError: says which component is wrong, and what would be right.
    """
    check_drafters(drafters)
    _check_needs(components)
    _check_pages(components)
    _check_drafters(components, drafters)
    for name, component in components.items():
        choose_coverage(component.spec.kind, component.coverage)
        if component.source is not None:
            _check_source(components, name, component.source)
        if component.packed:
            _check_packed(components, name)
    for host in dict.fromkeys(c.source for c in components.values() if c.packed):
        if host is not None:
            _check_riders(components, host, drafters)


def model_layers(components: Bundle, drafters: Sequence[Drafter] = ()) -> int:
    """Return how many layers the model has, drafts aside, as far as its components know."""
    drafts = {name for drafter in drafters for name in drafter.components}
    bodies = [c for name, c in components.items() if not c.packed and name not in drafts]
    return 1 + max(c.spec.layer_ids[-1] for c in bodies or components.values())


def _check_needs(components: Bundle) -> None:
    needs = {name: component.need for name, component in components.items()}
    for name, need in needs.items():
        if not isinstance(need, str) or need not in ("required", "optional"):
            raise SpecError(f"need {need!r:.80} of {name!r}: want 'required' or 'optional'")
    if "required" not in needs.values():
        raise SpecError(f"components {_names(needs)}: want at least one with need='required'")


def _check_pages(components: Bundle) -> None:
    sizes = {name: component.spec.page_tokens for name, component in components.items()}
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            raise SpecError(
                f"{name!r} has pages of {other} tokens and {first!r} of {size}: want one size, "
                "since one hash names a page of all components"
            )


def _check_source(components: Bundle, name: str, source: str) -> None:
    path = [name]
    at: str | None = source
    while at is not None:
        if at not in components or at in path:
            chain = " from ".join(repr(other) for other in (*path[1:], at))
            raise SpecError(
                f"slots of {name!r} follow from {chain}: want a component with slots of its own, "
                f"among {_names(components)}"
            )
        path.append(at)
        at = components[at].source
    mine, theirs = components[name], components[source]
    if not covers(theirs.coverage, mine.coverage, mine.spec.page_tokens):
        raise SpecError(
            f"{name!r} needs {mine.coverage} and its slots follow from {source!r}, which keeps "
            f"only {theirs.coverage}: want coverage={theirs.coverage}, or slots of its own"
        )


def _check_packed(components: Bundle, name: str) -> None:
    mine = components[name]
    if mine.source is None:
        raise SpecError(f"packed {name!r} has no source: want the component it rides with")
    host = components[mine.source]
    if host.packed:
        raise SpecError(
            f"{name!r} rides with {mine.source!r}, which rides itself: want source={host.source!r}"
        )
    for who, component in ((name, mine), (mine.source, host)):
        if component.need != "required":
            raise SpecError(
                f"{name!r} is packed with {mine.source!r} and {who!r} is optional: one transfer "
                "carries both, so want need='required', or packed=False"
            )
    rows, host_rows = (c.spec.parts[0].rows for c in (mine, host))
    if rows != host_rows:
        raise SpecError(
            f"{name!r} has {rows} rows a page and rides with {mine.source!r} of {host_rows}: want "
            f"{host_rows}, or packed=False"
        )
    if mine.sharded != host.sharded:
        raise SpecError(
            f"{name!r} has sharded={mine.sharded} and rides with {mine.source!r} of "
            f"sharded={host.sharded}: want the same, or packed=False"
        )


def _check_riders(components: Bundle, host: str, drafters: Sequence[Drafter]) -> None:
    """Check the layers of all that ride with ``host``, and that its likes carry as many."""
    riders = _riders(components, host)
    given = tuple(layer for name in riders for layer in components[name].spec.layer_ids)
    pack_layers(dict(enumerate(range(components[host].spec.layers))), len(given))
    drafts = {name for drafter in drafters for name in drafter.components}
    bodies = [n for n, c in components.items() if not c.packed and n not in drafts]
    target_layers = 1 + max(components[name].spec.layer_ids[-1] for name in {host, *bodies})
    wanted = draft_layer_ids(target_layers, len(given))
    if given != wanted:
        raise SpecError(
            f"{_names(riders)} ride with {host!r} as model layers {given}: want {wanted} by depth, "
            f"next behind the {target_layers} layers of the target"
        )
    root = _root(components, host)
    for like in bodies:
        riding = sum(components[name].spec.layers for name in _riders(components, like))
        if _root(components, like) == root and riding != len(given):
            raise SpecError(
                f"{len(given)} draft layers ride with {host!r} and {riding} with {like!r}, though "
                "a layer has both: want as many, or packed=False"
            )


def _check_drafters(components: Bundle, drafters: Sequence[Drafter]) -> None:
    names = [drafter.name for drafter in drafters]
    if len(set(names)) != len(names):
        raise SpecError(f"drafters {_names(names)}: want different names")
    for drafter in drafters:
        for name in drafter.components:
            if name not in components:
                raise SpecError(
                    f"component {name!r} of drafter {drafter.name!r} is none of "
                    f"{_names(components)}: want it declared, or its state is never stored"
                )
    drafts = {name for drafter in drafters for name in drafter.components}
    for name, component in components.items():
        if component.packed and name not in drafts:
            raise SpecError(
                f"packed {name!r} belongs to no drafter: want Drafter('mtp', ({name!r},)) among "
                "drafters, since it says how far the state runs ahead of accepted tokens"
            )
    kept = retained(drafters)
    for name, component in components.items():
        rule = component.coverage
        if isinstance(rule, Window) and rule.retained < kept:
            raise SpecError(
                f"{name!r} stores {rule} and a drafter retains {kept} tokens before it: want "
                f"{Window(rule.tokens, kept)}"
            )


def _riders(components: Bundle, host: str) -> list[str]:
    return [name for name, c in components.items() if c.packed and c.source == host]


def _root(components: Bundle, name: str) -> str:
    source = components[name].source
    return name if source is None else _root(components, source)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
