"""unikv: the KV cache of large language models as objects that any deployment can read.

The names below load on first use, so that ``import unikv`` needs neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from unikv.errors import MissingExtraError

if TYPE_CHECKING:
    from unikv.catalog import Catalog
    from unikv.client import Client
    from unikv.component import Component
    from unikv.coverage import Endpoints, EveryPage, Window
    from unikv.draft import Drafter
    from unikv.errors import UnikvError
    from unikv.keys import ObjectKey
    from unikv.namespace import Namespace
    from unikv.paged import PagedCache
    from unikv.pages import PageChain, Root, page_hashes
    from unikv.registry import open_store
    from unikv.spec import KVSpec
    from unikv.state import StatePart
    from unikv.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "Client",
    "Component",
    "Drafter",
    "Endpoints",
    "EveryPage",
    "KVSpec",
    "Namespace",
    "ObjectKey",
    "PageChain",
    "PagedCache",
    "Root",
    "StatePart",
    "Topology",
    "UnikvError",
    "Window",
    "open_store",
    "page_hashes",
]

_HOMES = {
    "Catalog": "catalog",
    "Client": "client",
    "Component": "component",
    "Drafter": "draft",
    "Endpoints": "coverage",
    "EveryPage": "coverage",
    "KVSpec": "spec",
    "Namespace": "namespace",
    "ObjectKey": "keys",
    "PageChain": "pages",
    "PagedCache": "paged",
    "Root": "pages",
    "StatePart": "state",
    "Topology": "topology",
    "UnikvError": "errors",
    "Window": "coverage",
    "open_store": "registry",
    "page_hashes": "pages",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module.

    Raises:
        MissingExtraError: the name needs torch, which is not installed.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'unikv' has no attribute {name!r}")
    try:
        module = import_module(f"unikv.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError(
            f"unikv.{name} needs torch: the engine's own, or pip install 'unikv[torch]'"
        ) from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
