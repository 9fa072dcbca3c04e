"""Namespace: all that must be equal for bytes to be exchangeable. It knows no rank, no engine."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, cast

from unikv.canonical import Json, decode, encode, hash_text, read_label
from unikv.cut import cut_page
from unikv.errors import FormatError, SpecError
from unikv.hf_config import read_spec, snapshot
from unikv.hf_rope import read_rope
from unikv.rope import Rope, canonical_rope
from unikv.spec import KVSpec
from unikv.weights import UNVERSIONED, check_weights, weights_from_files

__all__ = ["Namespace", "Options", "weights_from_files"]

FORMAT = 1
LAYOUT = "group,layer,part,row,head,width"
PAGES_PER_OBJECT = 1
TEXT_LIMIT = 4000
"""Bytes of the longest canonical text: it must fit a hint record of 4,096 bytes."""

TAG_ALGORITHMS = ("xxh3_64", "blake3_keyed")
CODECS = ("none", "zstd")

NAMESPACE_CONTEXT = "unikv namespace v1"
FAMILY_CONTEXT = "unikv family v1"
_CUTS = ("codec", "grid", "layout")  # siblings of a family may differ in these


class Options(TypedDict, total=False):
    """The fields of a `Namespace` that have defaults, less ``component``."""

    model: str
    quant: str
    scales: str
    numerics: str
    layers_per_chunk: int | None
    layer_cuts: Sequence[int] | None
    heads_per_chunk: int | None
    phases: int
    interleave: int
    codec: str
    tags: str


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class Namespace:
    """Everything that must be equal for stored bytes to be exchangeable, and its digest.

    A frozen snapshot: the mappings and lists it was made from may change later. Two namespaces
    are equal when their canonical texts are; ``model`` is a label beside the text unless the
    weights are "unversioned".

    Args:
        spec: the component's bytes.
        weights: "hf:<commit>", "files:<digest>", or "unversioned" (then ``model`` is needed).
        rope: every RoPE setting that shapes K (see `canonical_rope`), or the word "none".
        model: a label for people.
        component: which cached state of the model it is.
        quant: the scheme by which the stored numbers were quantised, or "none".
        scales: digest of the quantisation's scales where they are not stored beside the bytes.
        numerics: a label for those who must not share across kernels or other settings.
        layers_per_chunk: even cuts of so many layers, the last may be shorter; all by default.
        layer_cuts: or the cuts themselves, ordinals from 0 to ``spec.layers``.
        heads_per_chunk: KV heads or state groups of a chunk, a divisor of them; all by default.
        phases: in how many token phases a page is cut; token t is in ``t // interleave % phases``.
        interleave: adjacent tokens of one phase; without phases it is 1.
        codec: "none", or "zstd" for slow links and archives: smaller, and two rounds a read.
        tags: the checksum algorithm, "xxh3_64" or "blake3_keyed".

    Raises:
        SpecError: a field is wrong, or the canonical text passes 4,000 bytes.
    """

    spec: KVSpec
    weights: str
    model: str
    component: str
    quant: str
    scales: str
    numerics: str
    layer_cuts: tuple[int, ...]
    heads_per_chunk: int
    phases: int
    interleave: int
    codec: str
    tags: str
    canonical: bytes  # RFC 8785 text
    digest: str  # 32 hex
    family: str  # 32 hex

    def __init__(  # noqa: PLR0913 - the fields of one value, all by keyword
        self,
        *,
        spec: KVSpec,
        weights: str,
        rope: Mapping[str, object] | Literal["none"],
        model: str = "",
        component: str = "target",
        quant: str = "none",
        scales: str = "",
        numerics: str = "",
        layers_per_chunk: int | None = None,
        layer_cuts: Sequence[int] | None = None,
        heads_per_chunk: int | None = None,
        phases: int = 1,
        interleave: int = 1,
        codec: str = "none",
        tags: str = "xxh3_64",
    ) -> None:
        if not isinstance(spec, KVSpec):
            raise SpecError(f"spec {spec!r:.80}: want a KVSpec, as KVSpec.mha(...) gives")
        check_weights(weights)
        cut = cut_page(
            spec,
            layers_per_chunk=layers_per_chunk,
            layer_cuts=layer_cuts,
            heads_per_chunk=heads_per_chunk,
            phases=phases,
            interleave=interleave,
        )
        texts = {
            "codec": _choose("codec", codec, CODECS),
            "component": read_label("component", component, empty=False),
            "model": read_label("model", model, empty=weights != UNVERSIONED),
            "numerics": read_label("numerics", numerics),
            "quant": read_label("quant", quant, empty=False),
            "scales": read_label("scales", scales),
            "tags": _choose("tags", tags, TAG_ALGORITHMS),
            "weights": weights,
        }
        facts: dict[str, Json] = {
            **texts,
            "format": FORMAT,
            "grid": cut.describe(),
            "layout": LAYOUT,
            "pages_per_object": PAGES_PER_OBJECT,
            "rope": canonical_rope(rope),
            "spec": spec.describe(),
        }
        if weights != UNVERSIONED:
            del facts["model"]
        canonical = _encode(facts)
        family = encode({name: value for name, value in facts.items() if name not in _CUTS})
        fields: dict[str, object] = {
            **texts,
            **cut._asdict(),
            "spec": spec,
            "canonical": canonical,
            "digest": hash_text(canonical, NAMESPACE_CONTEXT),
            "family": hash_text(family, FAMILY_CONTEXT),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def rope(self) -> Rope:
        """The canonical RoPE settings, a fresh copy."""
        return cast("Rope", json.loads(self.canonical)["rope"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __repr__(self) -> str:
        return f"Namespace({self.model!r}, {self.component!r}, digest={self.digest!r})"

    @classmethod
    def from_hf_config(
        cls,
        config: object,
        *,
        weights: str,
        page_tokens: int,
        dtype: object = None,
        component: str = "target",
        layer_types: Iterable[str] | None = None,
        layer_ids: Iterable[int] | None = None,
        rope: Mapping[str, object] | Literal["none"] | None = None,
        **options: Unpack[Options],
    ) -> "Namespace":
        """Return the namespace of a Hugging Face model config, 4.x or 5.x, read once.

        Args:
            config: a mapping as in ``config.json``, or an object with ``to_dict()``.
            weights: as of the class.
            page_tokens: tokens of a page.
            dtype: of the cache, a name or a torch dtype; by default the config's.
            component: as of the class.
            layer_types: the config's layer types whose cache the component holds; needed where
                the config has several kinds of attention.
            layer_ids: or the model's layers themselves.
            rope: instead of the config's settings; "none" where the model has no RoPE.
            options: other fields of the class.

        Raises:
            SpecError: the config does not say what the cache looks like, or says it unclearly.
        """
        facts = snapshot(config)
        spec = read_spec(
            facts,
            page_tokens=page_tokens,
            dtype=dtype,
            layer_types=layer_types,
            layer_ids=layer_ids,
        )
        settings = read_rope(facts) if rope is None else rope
        return cls(spec=spec, weights=weights, rope=settings, component=component, **options)

    @classmethod
    def parse(cls, text: bytes) -> "Namespace":
        """Return the namespace whose canonical text is ``text``, which nobody vouches for.

        Raises:
            FormatError: it is longer than 4,000 bytes, of another format version, or not the
                canonical text of any namespace.
        """
        if len(text) > TEXT_LIMIT:
            raise FormatError(f"namespace text of {len(text)} bytes: want at most {TEXT_LIMIT}")
        text = bytes(text)
        fields: dict[str, Any] = decode(text)  # Any: the constructor checks every type
        version = fields.pop("format", None)
        if version != FORMAT:
            raise FormatError(
                f"namespace text of format {version!r:.80}: this reader knows format {FORMAT}"
            )
        try:
            del fields["layout"], fields["pages_per_object"]  # fixed: the comparison checks them
            spec = KVSpec.from_description(fields.pop("spec"))
            namespace = cls(spec=spec, **fields.pop("grid"), **fields)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"namespace text with a wrong field: {error!s:.300}") from error
        if namespace.canonical != text:
            raise FormatError("namespace text that differs from its canonical form (RFC 8785)")
        return namespace


def _encode(facts: dict[str, Json]) -> bytes:
    canonical = encode(facts)
    if len(canonical) > TEXT_LIMIT:
        raise SpecError(
            f"canonical text of {len(canonical)} bytes: want at most {TEXT_LIMIT}; shorter labels "
            "or fewer layer cuts would fit"
        )
    return canonical


def _choose(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise SpecError(f"{name} {value!r:.80}: want one of {', '.join(choices)}")
    return value
