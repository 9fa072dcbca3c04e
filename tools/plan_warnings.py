"""Plan warnings: what of a common grid its operator should know. It chooses nothing."""

from collections.abc import Iterator
from typing import NamedTuple

from unikv.cut import Cut
from unikv.errors import SpecError
from unikv.fleet import repage
from unikv.namespace import TEXT_LIMIT
from unikv.objects import ObjectFormat
from unikv.tools.plan_figures import (
    DeploymentFigures,
    ObjectFigures,
    PromptFigures,
    Warn,
    objects_of,
)
from unikv.tools.plan_model import Model
from unikv.tools.wording import count_text, size_text

S3_BYTES = 2 << 20
"""Smaller objects cost an S3-compatible server more in requests than in bytes."""

SMALL_BYTES = 64 << 10
"""Smaller objects cost any backend more in calls than in bytes."""

MANY_OBJECTS = 64
"""More objects a page make the lists, batches and bills of a store long."""

_COPIED = {"mha": "heads", "mla": "latents", "rows": "rows", "state": "state groups"}

TEXT_RESERVE = 400
"""Bytes of a namespace's text that weights, labels and scales may still want."""


class Facts(NamedTuple):
    """What warnings look at."""

    model: Model
    form: ObjectFormat
    objects: tuple[ObjectFigures, ...]
    deployments: tuple[DeploymentFigures, ...]
    prompt: PromptFigures


def find_warnings(facts: Facts) -> tuple[Warn, ...]:
    """Return what is not as it could be."""
    return (
        *_small(facts),
        *_many(facts),
        *_ragged(facts),
        *_copies(facts),
        *_amplified(facts),
        *_short(facts),
        *_text(facts),
        *_placeholders(facts),
    )


def _small(facts: Facts) -> Iterator[Warn]:
    for code, limit, why in (
        ("under_2_mib", S3_BYTES, "on S3 requests cost more time and money than bytes"),
        ("under_64_kib", SMALL_BYTES, "every backend spends more on calls than on bytes"),
    ):
        small = [one for one in facts.objects if one.object_bytes < limit]
        if small:
            count, total = sum(one.objects for one in small), len(facts.form.grid.chunks)
            which = "all objects" if count == total else f"{count:,} of {total:,} objects"
            yield Warn(
                code,
                f"{which} of a page are under {size_text(limit)}, the smallest "
                f"{size_text(small[-1].object_bytes)}: {why}{_larger_page(facts, limit)}",
            )


def _larger_page(facts: Facts, limit: int) -> str:
    """Name the page, doubled as often as it takes, by which all objects reach ``limit``."""
    namespace = facts.form.namespace
    cut = Cut(
        namespace.layer_cuts, namespace.heads_per_chunk, namespace.phases, namespace.interleave
    )
    spec = namespace.spec
    while spec.kind != "state":  # which is as large at the end of a long page as of a short one
        try:
            spec = repage(spec, 2 * spec.page_tokens)
            smallest = objects_of(ObjectFormat.keyless(facts.model.namespace(spec, cut)))[-1]
        except SpecError:
            break
        if smallest.object_bytes >= limit:
            return (
                f"; --page-tokens {spec.page_tokens} makes the smallest "
                f"{size_text(smallest.object_bytes)}, and prefixes are reused by so many tokens"
            )
    return ""


def _many(facts: Facts) -> Iterator[Warn]:
    grid = facts.form.grid
    if len(grid.chunks) > MANY_OBJECTS:
        finest = [
            str(one.topology)
            for one in facts.deployments
            if one.own_grid
            and one.own_grid.chunks_per_page
            == max(two.own_grid.chunks_per_page for two in facts.deployments if two.own_grid)
        ]
        yield Warn(
            "many_objects",
            f"{len(grid.chunks):,} objects a page ({count_text(grid.cuts, 'layer cut')} x "
            f"{count_text(grid.groups, 'head group')} x {count_text(grid.phases, 'phase')}): the "
            f"finest grid is that of {' and '.join(finest)}; pipelines that share stage "
            "boundaries, and readers that need not write (--read-only), make it coarser",
        )


def _ragged(facts: Facts) -> Iterator[Warn]:
    most, least = facts.objects[0].layers, facts.objects[-1].layers
    if most > least + 1:
        yield Warn(
            "ragged_cuts",
            f"ragged cuts: chunks of {least} to {most} layers, so objects of "
            f"{size_text(facts.objects[-1].object_bytes)} to "
            f"{size_text(facts.objects[0].object_bytes)}; stages that end at the same layers in "
            "all deployments (--deploy tp1,pp2:A-B) make them even",
        )


def _copies(facts: Facts) -> Iterator[Warn]:
    spec = facts.form.namespace.spec
    held = [one for one in facts.deployments if one.replicas > 1]
    if not held:
        return
    each = ", ".join(f"{one.topology} on {one.replicas} ranks" for one in held)
    text = f"replicated {_COPIED[spec.kind]}: {each}; a load reads them as often"
    if any(one.writes for one in held):
        text += (
            '; writers="striped" lets each of these ranks save an equal share of the pages, chosen '
            'by their hashes, so that every byte is stored once; with writers="first" one saves all'
        )
    if not spec.has_heads and any(one.page_ranks == 1 for one in held):
        text += "; Component(..., sharded=True) deals pages out over tensor ranks instead"
    yield Warn("replicas", text)


def _amplified(facts: Facts) -> Iterator[Warn]:
    each = [
        f"{one.topology} reads {one.read_amplification:.2f} bytes for each that it needs "
        f"(its worst rank {one.worst_read_amplification:.2f})"
        for one in facts.deployments
        if one.read_bytes > one.needed_bytes
    ]
    if each:
        yield Warn(
            "read_amplification",
            f"{'; '.join(each)}: heads that a rank needs share chunks with others; with --deploy "
            "instead of --read-only the grid is cut for them too",
        )


def _short(facts: Facts) -> Iterator[Warn]:
    prompt, page_tokens = facts.prompt, facts.form.namespace.spec.page_tokens
    if not prompt.pages:
        yield Warn(
            "short_prompt",
            f"a prompt of {count_text(prompt.tokens, 'token')} is shorter than a page of "
            f"{page_tokens}: nothing of it is stored",
        )


def _text(facts: Facts) -> Iterator[Warn]:
    size = len(facts.form.namespace.canonical)
    if size > TEXT_LIMIT - TEXT_RESERVE:
        yield Warn(
            "long_text",
            f"the namespace's text has {size:,} bytes of at most {TEXT_LIMIT:,}: long labels may "
            "not fit; fewer layer cuts make it shorter",
        )


def _placeholders(facts: Facts) -> Iterator[Warn]:
    for name, why in (
        ("weights", "object sizes change by some bytes with the real ones (--weights)"),
        ("rope", "numbers do not tell it (--rope)"),
    ):
        if name in facts.model.placeholders:
            yield Warn(f"placeholder_{name}", f"{name} in the snippet is a placeholder: {why}")
