"""Errors: every exception unikv raises, grouped by what a caller would do about it.

    UnikvError
    ├── SpecError (ValueError)        a spec, namespace or model config is wrong
    ├── TopologyError (ValueError)    sizes or a rank do not fit the model: fix the deployment
    ├── GridError (ValueError)        a writer does not own whole chunks: choose another grid
    ├── PoolError (ValueError)        tensors, slots or block tables do not fit: fix the integration
    ├── KeyFormatError (ValueError)   a text is no page hash or object key
    ├── UrlError (ValueError)         a store URL is unknown or malformed
    ├── FormatError (ValueError)      stored bytes break the object format
    ├── StoreError (OSError)          a backend failed: retry, or treat as a miss
    └── MissingExtraError (ImportError)  an optional dependency is not installed

Each message names the value that was wrong and, where one exists, a right one.
"""


class UnikvError(Exception):
    """Parent of all errors that unikv raises on purpose."""


class SpecError(UnikvError, ValueError):
    """A spec, namespace or model config that cannot be right."""


class TopologyError(UnikvError, ValueError):
    """Parallel sizes or a rank that do not fit each other or the model."""


class GridError(UnikvError, ValueError):
    """A writer that does not own whole chunks of its grid."""


class PoolError(UnikvError, ValueError):
    """Tensors, slots or block tables that do not fit the spec or the rank."""


class KeyFormatError(UnikvError, ValueError):
    """A text that is not the one spelling of a page hash or an object key."""


class UrlError(UnikvError, ValueError):
    """A store URL of unknown scheme or with wrong parts."""


class FormatError(UnikvError, ValueError):
    """Stored bytes that break the object format."""


class StoreError(UnikvError, OSError):
    """A backend that could not do what was asked of one key."""

    retryable = False
    """Whether the same call may succeed a moment later: a lost connection, "slow down", busy."""


class MissingExtraError(UnikvError, ImportError):
    """An optional dependency that is not installed."""
