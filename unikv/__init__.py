"""unikv: the KV cache of large language models as objects that any deployment can read.

The names below load on first use, so that ``import unikv`` needs neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unikv.catalog import Catalog
    from unikv.client import Client
    from unikv.component import Component
    from unikv.errors import UnikvError
    from unikv.keys import ObjectKey
    from unikv.namespace import Namespace
    from unikv.paged import PagedCache
    from unikv.pages import PageChain, Root, page_hashes
    from unikv.registry import open_store
    from unikv.spec import KVSpec
    from unikv.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Catalog",
    "Client",
    "Component",
    "KVSpec",
    "Namespace",
    "ObjectKey",
    "PageChain",
    "PagedCache",
    "Root",
    "Topology",
    "UnikvError",
    "open_store",
    "page_hashes",
]

_HOMES = {
    "Catalog": "catalog",
    "Client": "client",
    "Component": "component",
    "KVSpec": "spec",
    "Namespace": "namespace",
    "ObjectKey": "keys",
    "PageChain": "pages",
    "PagedCache": "paged",
    "Root": "pages",
    "Topology": "topology",
    "UnikvError": "errors",
    "open_store": "registry",
    "page_hashes": "pages",
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unikv' has no attribute {name!r}")
    value: object = getattr(import_module(f"unikv.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
