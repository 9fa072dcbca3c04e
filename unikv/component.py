"""Component: one kind of cached state that a page bundles. It knows no rank and no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unikv.errors import SpecError

if TYPE_CHECKING:
    from unikv.namespace import Namespace
    from unikv.paged import PagedCache

TARGET = "target"


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """A namespace and, where bytes are to move, this rank's pool of it.

    Every page of a component is needed: the usable prefix is the one that all can restore.
    ``sharded`` says which ranks own a page; see `Rank.shard`. None deals pages out over context
    ranks, False keeps them all on each (as a gathered indexer), True deals latents out over
    tensor ranks where there are no context ranks.
    """

    namespace: Namespace
    pool: PagedCache | None = None
    sharded: bool | None = None


def name_components(
    given: Namespace | Mapping[str, Component], pool: PagedCache | None = None
) -> dict[str, Component]:
    """Return components by name, from one namespace (and its pool) or from a mapping of them.

    Raises:
        SpecError: no component, a pool beside a mapping, or a name that its namespace denies.
    """
    if not isinstance(given, Mapping):
        return {given.component: Component(given, pool)}
    if pool is not None:
        raise SpecError("with a mapping of components each brings its own pool: drop the argument")
    if not given:
        raise SpecError("no components: want at least one, such as {'target': Component(...)}")
    for name, component in given.items():
        if component.namespace.component != name:
            raise SpecError(
                f"component {name!r} has a namespace of component "
                f"{component.namespace.component!r}: give both the same name"
            )
    return dict(given)
