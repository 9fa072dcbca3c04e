"""Wording: findings as short texts for people. It prints nothing and reads nothing.

Labels come from strangers: whatever is printed goes through `printable`, so that no byte of a
store ever commands a terminal.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from unikv.canonical import Json
from unikv.tools.findings import NamespaceContent, NamespaceFacts

HEAD_NOUNS = {"mha": "head", "state": "group"}
"""What a head is called, in each kind that has some."""

_SHOWN = 8  # numbers of a list


def printable(text: str) -> str:
    """Return ``text`` with escapes for all that a terminal may obey or hide.

    These are control characters, bidirectional marks, surrogates and unassigned code points.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size_text(size: int) -> str:
    """Return bytes in the largest binary unit that leaves a whole number before the point."""
    if size < 1024:
        return f"{size} bytes"
    value, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB", "PiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.1f} {unit}"


def count_text(count: int, one: str, more: str = "") -> str:
    """Return a count with its noun: "1 page", "1,024 pages"."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def some(values: Iterable[object], limit: int = _SHOWN) -> str:
    """Return a list in short: first ones, dots, last one."""
    texts = [str(value) for value in values]
    return ", ".join(texts if len(texts) <= limit else [*texts[: limit - 1], "...", texts[-1]])


def namespace_lines(facts: NamespaceFacts) -> dict[str, str]:
    """Return a namespace as names and values, of which those that say nothing are left out."""
    lines = {
        "namespace": facts.digest,
        "family": facts.family,
        "model": facts.model or "(no label)",
        "component": facts.component,
        "weights": facts.weights,
        "cache": cache_text(facts.spec),
        "model layers": _layers_text(facts.spec),
        "grid": grid_text(facts),
        "rope": rope_text(facts.rope),
        "quantisation": _quant_text(facts),
        "numerics": facts.numerics,
        "codec": facts.codec,
        "tags": facts.tags,
        "page": f"{size_text(facts.payload_bytes)} in {count_text(facts.chunks_per_page, 'object')}"
        f" ({'' if facts.codec == 'none' else 'at most '}{facts.stored_bytes:,} bytes stored)",
        "hint": "none: an object told of it" if facts.announced is False else "",
    }
    return {name: value for name, value in lines.items() if value}


def brief_lines(facts: NamespaceFacts) -> dict[str, str]:
    """Return as much of a namespace as tells it from its neighbours."""
    lines = namespace_lines(facts)
    return {name: lines[name] for name in ("namespace", "model", "component", "cache", "grid")}


def cache_text(spec: Mapping[str, Json]) -> str:
    """Return a spec as one sentence, without its layer ids."""
    kind = spec["kind"]
    if kind == "mha":
        dims = f"{spec['head_dim']}"
        if spec["v_head_dim"] != spec["head_dim"]:
            dims = f"K {spec['head_dim']} and V {spec['v_head_dim']}"
        what = f"{_count(spec, 'kv_heads', 'KV head')} of {dims}, {spec['dtype']}"
    elif kind == "mla":
        what = f"latents of {spec['head_dim']}, {spec['dtype']}"
    elif kind == "rows":
        what = f"{_count(spec, 'rows_per_page', 'row')} of {_count(spec, 'row_bytes', 'byte')}"
    else:
        parts = spec["state_parts"]
        assert isinstance(parts, list)
        named = "; ".join(_part_text(part) for part in parts if isinstance(part, dict))
        what = f"{_count(spec, 'kv_heads', 'group')} of {named}"
    layers, tokens = _count(spec, "layers", "layer"), _count(spec, "page_tokens", "token")
    return f"{kind}, {layers}, {what}, pages of {tokens}"


def grid_text(facts: NamespaceFacts) -> str:
    """Return a grid as its cuts and what a page comes to."""
    cuts = some(f"{a}-{b}" for a, b in pairwise(facts.layer_cuts))
    words = [f"layers {cuts}"]
    if "kv_heads" in facts.spec:
        unit = HEAD_NOUNS[str(facts.spec["kind"])]
        words.append(f"{count_text(facts.heads_per_chunk, unit)} a chunk")
    if facts.phases > 1:
        words.append(f"{facts.phases} token phases, interleave {facts.interleave}")
    return f"{'; '.join(words)}: {count_text(facts.chunks_per_page, 'chunk')} a page"


def rope_text(rope: Mapping[str, Json] | str) -> str:
    """Return RoPE settings in one line."""
    if isinstance(rope, str):
        return rope
    return ", ".join(
        f"{name} ({rope_text(value)})" if isinstance(value, dict) else f"{name} {_plain(value)}"
        for name, value in rope.items()
    )


def content_lines(content: NamespaceContent) -> dict[str, str]:
    """Return what is stored of a namespace as names and values."""
    stored = [count_text(content.pages, "page"), count_text(content.objects, "object")]
    lines = {"stored": ", ".join([*stored, size_text(content.bytes)])}
    complete = f"{content.complete_pages:,} of {count_text(content.pages, 'page')}"
    if content.incomplete_pages:
        lack = "lacks" if content.incomplete_pages == 1 else "lack"
        complete += f"; {content.incomplete_pages:,} {lack} chunks"
    lines["complete"] = complete
    if content.verified_objects:
        lines["verified"] = count_text(content.verified_objects, "object")
    if content.unverified_objects:
        left = count_text(content.unverified_objects, "object")
        lines["not verified"] = f"{left}: keyed, needs the key (--tag-key-file)"
        if content.namespace.tags != "blake3_keyed":
            lines["not verified"] = f"{left}: too large to read whole"
    return lines


def _count(spec: Mapping[str, Json], name: str, noun: str) -> str:
    count = spec[name]
    assert isinstance(count, int)
    return count_text(count, noun)


def _layers_text(spec: Mapping[str, Json]) -> str:
    ids = spec["layer_ids"]
    assert isinstance(ids, list)
    return "" if ids == list(range(len(ids))) else some(ids)


def _quant_text(facts: NamespaceFacts) -> str:
    return f"{facts.quant}, scales {facts.scales}" if facts.scales else facts.quant


def _part_text(part: Mapping[str, Json]) -> str:
    shape, segments = part["shape"], part["segments"]
    assert isinstance(shape, list)
    assert isinstance(segments, list)
    cut = f" cut as {'+'.join(map(str, segments))}" if segments else ""
    return f"{part['name']} {part['dtype']} {'x'.join(map(str, shape))}{cut}"


def _plain(value: Json) -> str:
    return f"({some(value)})" if isinstance(value, list) else str(value)
