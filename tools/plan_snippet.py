"""Plan snippet: Python that makes a namespace, to be pasted. It knows no fleet."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pprint import pformat
from textwrap import indent

from unikv.cut import cut_page
from unikv.namespace import Namespace
from unikv.spec import KVSpec

_WIDTH = 100
_INDENT = "    "
_ORDER = (
    "layers",
    "kv_heads",
    "head_dim",
    "v_head_dim",
    "dim",
    "row_bytes",
    "rows_per_page",
    "dtype",
    "page_tokens",
    "layer_ids",
)
_SPEC = object()  # stands for the variable of the first line
_COMMENTS = {
    "weights": 'a placeholder: want "hf:<commit>", or weights_from_files([...])',
    "rope": "a placeholder: want the model's, as rope_from_hf_config(config) gives",
}


def write_snippet(namespace: Namespace, placeholders: Iterable[str]) -> str:
    """Return the lines of Python after which ``namespace`` is equal to this one.

    Args:
        namespace: of kind mha, mla or rows.
        placeholders: names of fields whose values are none of the model's.
    """
    comments = {name: _COMMENTS[name] for name in placeholders}
    fields = {
        "model": namespace.model,
        "weights": namespace.weights,
        "component": namespace.component,
        "spec": _SPEC,
        "rope": namespace.rope,
        **_grid(namespace),
        "codec": namespace.codec,
    }
    if namespace.codec == "none":
        del fields["codec"]
    if namespace.component == "target":
        del fields["component"]
    return "\n".join(
        [
            "from unikv import KVSpec, Namespace",
            "",
            _call(f"spec = KVSpec.{namespace.spec.kind}", _spec(namespace.spec), {}),
            _call("namespace = Namespace", fields, comments),
        ]
    )


def _spec(spec: KVSpec) -> dict[str, object]:
    facts: dict[str, object] = {**spec.describe()}
    del facts["kind"], facts["layer_ids"]
    if spec.kind == "mla":
        facts["dim"] = facts.pop("head_dim")
    if spec.kind == "mha" and spec.v_head_dim == spec.head_dim:
        del facts["v_head_dim"]
    if spec.layer_ids != tuple(range(spec.layers)):
        facts["layer_ids"] = _sequence(spec.layer_ids)
    return {name: facts[name] for name in _ORDER if name in facts}


def _sequence(numbers: tuple[int, ...]) -> object:
    """Return equal steps as a range."""
    steps = {b - a for a, b in pairwise(numbers)}
    if len(steps) != 1:
        return numbers
    [step] = steps
    return range(numbers[0], numbers[-1] + 1, step)


def _grid(namespace: Namespace) -> dict[str, object]:
    """Return the settings of the grid that differ from their defaults, even cuts as one number."""
    spec, cuts = namespace.spec, namespace.layer_cuts
    fields: dict[str, object] = {}
    if len(cuts) > 2:
        even = cut_page(spec, layers_per_chunk=cuts[1]).layer_cuts == cuts
        fields |= {"layers_per_chunk": cuts[1]} if even else {"layer_cuts": cuts}
    if namespace.heads_per_chunk != spec.kv_heads:
        fields["heads_per_chunk"] = namespace.heads_per_chunk
    if namespace.phases > 1:
        fields |= {"phases": namespace.phases, "interleave": namespace.interleave}
    return fields


def _call(head: str, fields: Mapping[str, object], comments: Mapping[str, str]) -> str:
    """Return a call with keyword arguments, in one line if it fits and needs no comment."""
    values = {name: _spell(value) for name, value in fields.items()}
    line = f"{head}({', '.join(f'{name}={text}' for name, text in values.items())})"
    if not comments and len(line) <= _WIDTH and "\n" not in line:
        return line
    lines = []
    for name, text in values.items():
        value = f"(\n{indent(text, _INDENT)}\n)" if "\n" in text else text
        comment = f"  # {comments[name]}" if name in comments else ""
        lines.append(f"{name}={value},{comment}")
    return f"{head}(\n{indent(chr(10).join(lines), _INDENT)}\n)"


def _spell(value: object) -> str:
    if value is _SPEC:
        return "spec"
    text = pformat(value, width=_WIDTH - 2 * len(_INDENT), compact=True, sort_dicts=False)
    if '"' in text or "\\" in text:
        return text
    return text.replace("'", '"')
