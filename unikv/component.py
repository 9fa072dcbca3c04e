"""Component: one kind of cached state that a page bundles. It knows no rank and no store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unikv.arguments import is_switch, whole_number
from unikv.bundle import Need, check_bundle
from unikv.coverage import Coverage, choose_coverage, covers
from unikv.errors import SpecError
from unikv.namespace import Namespace

if TYPE_CHECKING:
    from unikv.draft import Drafter
    from unikv.paged import PagedCache
    from unikv.spec import KVSpec

NO_QUANT = "none"
SCALES = "scales"


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """A namespace, where bytes are to move this rank's pool of it, and its part in a bundle.

    Args:
        namespace: what its bytes are; names the component.
        pool: this rank's pool; a catalog needs none.
        sharded: which ranks own a page; see `Rank.shard`. None deals pages out over context
            ranks, False keeps them all on each (as a gathered indexer), True deals latents out
            over tensor ranks where there are no context ranks. State is kept by each (None is
            False): whichever rank goes on needs it.
        need: "required" ends the usable prefix where it is missing; "optional" drops out alone
            and the report says up to where it is valid.
        coverage: which of its pages an endpoint needs; None: `Endpoints` for state, else
            `EveryPage`.
        source: the component that its slots follow from; None where a call brings its own.
        packed: its layers ride with the first layers of its source, in one transfer.
        null_slot: a slot that the engine uses for "nothing here"; a page that names it is not
            held, and a save skips and counts it.

    Raises:
        SpecError: an argument of another type, or a coverage that does not fit the kind. (A pool
            is looked at by the client, and by nobody else.)
    """

    namespace: Namespace
    pool: PagedCache | None = None
    sharded: bool | None = None
    need: Need = "required"
    coverage: Coverage = None  # type: ignore[assignment]  # __post_init__ puts a rule for None
    source: str | None = None
    packed: bool = False
    null_slot: int | None = None

    def __post_init__(self) -> None:
        self._check()
        rule = choose_coverage(self.spec.kind, self.coverage)
        object.__setattr__(self, "coverage", rule)
        if self.sharded is None and self.spec.kind == "state":
            object.__setattr__(self, "sharded", False)

    def _check(self) -> None:
        """Refuse what would be taken for something else, or break only where it is used."""
        if not isinstance(self.namespace, Namespace):
            raise SpecError(
                f"a component with a namespace of type {type(self.namespace).__name__}: want "
                "Component(Namespace(...), pool)"
            )
        of = f"of component {self.namespace.component!r}"
        if self.sharded is not None and not is_switch(self.sharded):
            raise SpecError(f"sharded={self.sharded!r:.80} {of}: want None, True or False")
        if not is_switch(self.packed):
            raise SpecError(f"packed={self.packed!r:.80} {of}: want True or False")
        if self.source is not None and not isinstance(self.source, str):
            raise SpecError(
                f"source={self.source!r:.80} {of}: want the name of another component, or None"
            )
        if self.null_slot is not None:
            slot = whole_number(self.null_slot)
            if slot is None or not 0 <= slot < 2**63:
                raise SpecError(
                    f"null_slot={self.null_slot!r:.80} {of}: want the number of a slot, 0 or more, "
                    "or None; -1 means nothing in any case"
                )
            object.__setattr__(self, "null_slot", slot)

    @property
    def spec(self) -> KVSpec:
        """The facts of its bytes."""
        return self.namespace.spec


def name_components(
    given: Namespace | Mapping[str, Component],
    pool: PagedCache | None = None,
    drafters: Sequence[Drafter] = (),
) -> dict[str, Component]:
    """Return components by name, from one namespace (and its pool) or from a mapping of them.

    Raises:
        SpecError: neither of the two, no component, a pool beside a mapping, a name that its
            namespace denies, parts that do not fit together (`check_bundle`), or quantised bytes
            without their scales.
    """
    if isinstance(given, Namespace):
        components = {given.component: Component(given, pool)}
    elif not isinstance(given, Mapping):
        raise SpecError(
            f"components of type {type(given).__name__}: want a Namespace, or components by name, "
            "such as {'target': Component(namespace, pool)}"
        )
    elif pool is not None:
        raise SpecError("with a mapping of components each brings its own pool: drop the argument")
    elif not given:
        raise SpecError("no components: want at least one, such as {'target': Component(...)}")
    else:
        components = dict(given)
    for name, component in components.items():
        if not isinstance(component, Component):
            raise SpecError(
                f"component {name!r:.80} is {type(component).__name__}: want Component(namespace, "
                "pool)"
            )
        if component.namespace.component != name:
            raise SpecError(
                f"component {name!r} has a namespace of component "
                f"{component.namespace.component!r}: give both the same name"
            )
    check_bundle(components, drafters)
    _check_scales(components)
    return components


def _check_scales(components: Mapping[str, Component]) -> None:
    """Refuse quantised bytes whose scales are neither in the identity nor stored beside them."""
    for name, component in components.items():
        namespace = component.namespace
        # Packed rows (kind "rows") hold their scales inside.
        if namespace.quant == NO_QUANT or namespace.scales or component.spec.kind == "rows":
            continue
        whole = [  # restored wherever the component is
            c.need == "required" and covers(c.coverage, component.coverage, c.spec.page_tokens)
            for other, c in components.items()
            if other.endswith(SCALES) and c.source == name
        ]
        if not any(whole):
            raise SpecError(
                f"component {name!r} has quant={namespace.quant!r} and its scales are nowhere: "
                "want scales=<digest> in its namespace where they are fixed, or, where they lie in "
                f"the pool, a required component {SCALES!r} (or of a name that ends so) with "
                f"source={name!r} and coverage={component.coverage}"
            )
