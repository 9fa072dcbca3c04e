"""Plan choice: a fleet's common grid with its figures, or why there is none. It prints nothing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from unikv.canonical import Json
from unikv.cut import Cut
from unikv.errors import SpecError
from unikv.fleet import Deployment, Suggestion, common_cut, find_misfits, suggest
from unikv.objects import ObjectFormat
from unikv.spec import KVSpec
from unikv.tools.plan_figures import (
    GridFigures,
    PlanFigures,
    Prices,
    deployment_of,
    grid_of,
    objects_of,
    prompt_of,
)
from unikv.tools.plan_model import Model
from unikv.tools.plan_snippet import write_snippet
from unikv.tools.plan_warnings import Facts, find_warnings


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no common grid: of one deployment, or (None) of all together."""

    topology: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Nearest:
    """A fleet that has a common grid, and how it differs from the one that was asked for."""

    changes: tuple[str, ...]
    deploy: tuple[str, ...]
    read_only: tuple[str, ...]
    page_tokens: int
    grid: GridFigures

    @classmethod
    def of(cls, found: Suggestion) -> "Nearest":
        """Return a suggestion as the words of a command line."""
        return cls(
            changes=found.changes,
            deploy=tuple(str(one.topology) for one in found.fleet if one.writes),
            read_only=tuple(str(one.topology) for one in found.fleet if not one.writes),
            page_tokens=found.spec.page_tokens,
            grid=grid_of(found.spec, found.cut),
        )


@dataclass(frozen=True, slots=True)
class NoGrid:
    """A fleet without a common grid."""

    model: str
    component: str
    spec: dict[str, Json]
    reasons: tuple[Reason, ...]
    nearest: Nearest | None

    def as_json(self) -> dict[str, object]:
        """Return the reasons as values that `json` writes; docs/plan.md names every field."""
        return {"ok": False, **asdict(self)}


def make_plan(
    model: Model, fleet: Sequence[Deployment], tokens: int, prices: Prices
) -> PlanFigures | NoGrid:
    """Return what the coarsest common grid costs the fleet, or why there is none.

    Args:
        model: the component.
        fleet: at least one deployment that writes.
        tokens: of the prompt whose requests and costs are told.
        prices: of an object store.

    Raises:
        SpecError: the model has no namespace whatever the grid: its text is too long.
        GridError: nobody writes.
    """
    model.namespace(model.spec)
    misfits = find_misfits(model.spec, fleet)
    reasons = tuple(Reason(str(one.deployment.topology), one.reason) for one in misfits)
    if not reasons:
        try:
            namespace = model.namespace(model.spec, common_cut(model.spec, fleet))
        except SpecError as error:
            reasons = (Reason(None, str(error)),)
        else:
            return _plan(model, ObjectFormat.keyless(namespace), fleet, tokens, prices)
    near = suggest(model.spec, fleet, lambda spec, cut: _has_namespace(model, spec, cut))
    nearest = None if near is None else Nearest.of(near)
    return NoGrid(model.label, model.component, model.spec.describe(), reasons, nearest)


def _has_namespace(model: Model, spec: KVSpec, cut: Cut) -> bool:
    try:
        model.namespace(spec, cut)
    except SpecError:
        return False
    return True


def _plan(
    model: Model, form: ObjectFormat, fleet: Sequence[Deployment], tokens: int, prices: Prices
) -> PlanFigures:
    namespace, spec = form.namespace, model.spec
    objects = objects_of(form)
    deployments = tuple(deployment_of(form, deployment) for deployment in fleet)
    prompt = prompt_of(form, deployments, tokens, prices)
    return PlanFigures(
        model=model.label,
        component=model.component,
        weights=model.weights,
        placeholders=model.placeholders,
        spec=spec.describe(),
        codec=namespace.codec,
        kv_bytes_per_token=spec.page_bytes / spec.page_tokens,
        grid=grid_of(spec, common_cut(spec, fleet)),
        objects=objects,
        payload_bytes_per_page=spec.page_bytes,
        stored_bytes_per_page=sum(one.objects * one.object_bytes for one in objects),
        namespace_text_bytes=len(namespace.canonical),
        deployments=deployments,
        prompt=prompt,
        prices=prices,
        warnings=find_warnings(Facts(model, form, objects, deployments, prompt)),
        snippet=write_snippet(namespace, model.placeholders),
    )
