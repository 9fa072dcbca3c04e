"""Pages: names for pages of tokens, each chained over all tokens before. They know no model."""

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from blake3 import blake3

from unikv.arguments import whole_number
from unikv.errors import KeyFormatError, SpecError

ROOT_CONTEXT = "unikv page root v1"
SECRET_CONTEXT = "unikv page key v1"  # noqa: S105 - the context of the derivation, no secret
SECRET_BYTES = 16
"""A shorter secret could be guessed, and with it the tenant's pages."""

_PAGE_HASH = re.compile(r"[0-9a-f]{64}\Z")
_PAGE_TOKENS_LIMIT = 2**20
_U32 = "I" if array("I").itemsize == 4 else "L"


class TokenArray(Protocol):
    """A one-dimensional array of token ids: ``array``, numpy or torch, on any device."""

    def tolist(self) -> object:
        """Return the ids as a list of ints."""


Tokens: TypeAlias = Iterable[int] | TokenArray


def check_pages(pages: Sequence[str]) -> None:
    """Raise `KeyFormatError` unless ``pages`` is a sequence of page hashes."""
    if isinstance(pages, str) or not isinstance(pages, Sequence):
        raise KeyFormatError(
            f"pages of type {type(pages).__name__}: want a sequence of page hashes, in order"
        )
    if not _all_hashes(pages):
        for page in pages:
            check_page_hash(page)


def _all_hashes(pages: Sequence[object]) -> bool:
    """Tell quickly whether all are page hashes; a path has thousands of them."""
    if not all(type(page) is str and len(page) == 64 for page in pages):
        return False
    joined = "".join(pages)  # type: ignore[arg-type] # texts all, as was just seen
    try:
        return len(bytes.fromhex(joined)) == 32 * len(pages) and joined == joined.lower()
    except ValueError:
        return False


def check_page_hash(text: object) -> None:
    """Raise `KeyFormatError` unless ``text`` is a page hash: 64 lower-case hexadecimal digits."""
    if not (isinstance(text, str) and _PAGE_HASH.match(text)):
        raise KeyFormatError(f"page hash {text!r:.100}: want 64 digits of 0-9a-f")


class Extra(NamedTuple):
    """What shapes a page's KV beside its tokens: a tag such as "image", and the content's id."""

    tag: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Root:
    """What a whole sequence's KV depends on, before its first token. Absent and empty differ.

    Texts are taken as they are, not normalised. What belongs to a place in the sequence, as an
    image, is an `Extra` of its pages instead. With a ``secret`` (16 bytes or more) nobody without
    it can compute or guess the hashes. ``repr`` shows neither the salt nor the secret.

    Raises:
        SpecError: a field is of the wrong type, or the secret is too short.
    """

    salt: str | bytes | None = field(default=None, repr=False)
    adapter: str | None = None
    adapter_digest: str | None = None
    secret: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, kinds in (("salt", (str, bytes)), ("adapter", str), ("adapter_digest", str)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise SpecError(f"{name} of type {type(value).__name__}: want a text, or None")
        if self.secret is not None and not isinstance(self.secret, bytes):
            raise SpecError(f"secret of type {type(self.secret).__name__}: want bytes, or None")
        if self.secret is not None and len(self.secret) < SECRET_BYTES:
            raise SpecError(f"secret of {len(self.secret)} bytes: want {SECRET_BYTES} or more")

    def chain_start(self, page_tokens: int) -> bytes:
        """Return the 32 bytes that stand before a first page of ``page_tokens`` tokens."""
        fields = b"\x01" + _frame(page_tokens.to_bytes(4, "little"))
        if isinstance(self.salt, str):
            fields += b"\x02" + _frame(_utf8("salt", self.salt))
        elif self.salt is not None:
            fields += b"\x03" + _frame(self.salt)
        if self.adapter is not None:
            fields += b"\x04" + _frame(_utf8("adapter", self.adapter))
        if self.adapter_digest is not None:
            fields += b"\x05" + _frame(_utf8("adapter_digest", self.adapter_digest))
        return blake3(fields, derive_key_context=ROOT_CONTEXT).digest()


class PageChain:
    """The page hashes of one sequence that grows: `extend` names the pages that became whole.

    Raises:
        SpecError: ``page_tokens`` is not from 1 to 1,048,576, or ``root`` is no `Root`.
        KeyFormatError: ``parent`` is no page hash.
    """

    def __init__(
        self, page_tokens: int, *, root: Root | None = None, parent: str | None = None
    ) -> None:
        size = whole_number(page_tokens)
        if size is None or not 0 < size <= _PAGE_TOKENS_LIMIT:
            raise SpecError(f"page_tokens {page_tokens!r:.80}: want 1 to {_PAGE_TOKENS_LIMIT}")
        root = Root() if root is None else root
        if not isinstance(root, Root):  # not shown: it may be a salt or a secret
            raise SpecError(f"root of type {type(root).__name__}: want Root(salt=...), or None")
        if parent is None:
            self._parent = root.chain_start(size)
        else:
            check_page_hash(parent)
            self._parent = bytes.fromhex(parent)
        self._hash: Callable[[bytes], blake3] = blake3
        if root.secret is not None:
            key = blake3(root.secret, derive_key_context=SECRET_CONTEXT).digest()
            self._hash = partial(blake3, key=key)
        self._tail = b""
        self._pages = 0
        self._extras: dict[int, bytes] = {}
        self.page_tokens = size

    @property
    def pages(self) -> int:
        """How many pages this chain has named; the next one has this index."""
        return self._pages

    def extend(
        self, tokens: Tokens, *, extras: Mapping[int, Sequence[Extra]] | None = None
    ) -> list[str]:
        """Return the hashes of the pages that ``tokens`` complete; the rest waits for more.

        Args:
            tokens: the next token ids of the sequence, each from 0 to 2^32 - 1.
            extras: by page index, counted from the chain's first page, in their order in the page.
                They may come before the page is whole, not after.

        Raises:
            SpecError: a token does not fit u32 (the message names its position), or extras are for
                a page that is named already. The chain is then as it was.
        """
        data = self._tail + _pack_tokens(tokens)
        extra_bytes = self._merge_extras({} if extras is None else extras)
        width = 4 * self.page_tokens
        whole = len(data) // width
        hashes: list[str] = []
        parent, first = self._parent, self._pages
        for page in range(whole):
            block = parent + data[page * width : (page + 1) * width]
            if extra_bytes:
                block += extra_bytes.pop(first + page, b"")
            parent = self._hash(block).digest()
            hashes.append(parent.hex())
        self._parent = parent
        self._tail = data[whole * width :]
        self._pages += whole
        self._extras = extra_bytes
        return hashes

    def _merge_extras(self, extras: Mapping[int, Sequence[Extra]]) -> dict[int, bytes]:
        if not isinstance(extras, Mapping):
            raise SpecError(
                f"extras of type {type(extras).__name__}: want a mapping, such as "
                "{0: [Extra(tag, value)]}"
            )
        merged = dict(self._extras)
        for key, items in extras.items():
            page = whole_number(key)
            if page is None or page < self._pages:
                raise SpecError(f"extras of page {key!r:.80}: want an index from {self._pages}")
            if not isinstance(items, Sequence):
                raise SpecError(
                    f"extras of page {page} of type {type(items).__name__}: want a list of "
                    "Extra(tag, value)"
                )
            merged[page] = merged.get(page, b"") + b"".join(map(_pack_extra, items))
        return merged


def page_hashes(
    tokens: Tokens,
    page_tokens: int,
    root: Root | None = None,
    parent: str | None = None,
    extras: Mapping[int, Sequence[Extra]] | None = None,
) -> list[str]:
    """Return the hash of every whole page of ``tokens``: 64 lower-case hex digits each.

    A page's hash is BLAKE3 over its parent's 32 bytes, its token ids as u32 little-endian, and its
    extras; the first page's parent comes from ``root``. docs/format.md has the bytes.

    Args:
        tokens: ids from 0 to 2^32 - 1; a list, or a one-dimensional array of any library.
        page_tokens: tokens of a page; a rest shorter than that has no hash.
        root: what the whole sequence depends on; nothing by default.
        parent: the hash of the page before ``tokens``, where they go on. It holds the root's salt
            and adapter already, but not its secret.
        extras: by page index in ``tokens``; those beyond the last whole page are of no effect.

    Raises:
        SpecError: a token does not fit u32 (the message names its position), or an argument is
            wrong.
        KeyFormatError: ``parent`` is no page hash.
    """
    return PageChain(page_tokens, root=root, parent=parent).extend(tokens, extras=extras)


def _pack_tokens(tokens: Tokens) -> bytes:
    """Return the ids as u32 little-endian."""
    if isinstance(tokens, str | bytes | bytearray | memoryview | AbstractSet | Mapping):
        raise SpecError(
            f"tokens of type {type(tokens).__name__}: want a list or array of ids, in order"
        )
    values = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if not isinstance(values, Iterable):
        raise SpecError(f"tokens {values!r:.80}: want a list or one-dimensional array of ids")
    ids = values if isinstance(values, list) else list(values)
    # `array` would take a bool for 0 or 1, and name no position; both need a look at the types.
    if not set(map(type, ids)) <= {int}:
        ids = [_read_id(position, value) for position, value in enumerate(ids)]
    try:
        packed = array(_U32, ids)
    except OverflowError:
        position = next(i for i, value in enumerate(ids) if not 0 <= value < 2**32)
        raise SpecError(
            f"token {position} is {ids[position]!r:.80}: want an id from 0 to {2**32 - 1}"
        ) from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _read_id(position: int, value: object) -> int:
    """Return a whole number of another library's type as an int."""
    if (number := whole_number(value)) is None:
        raise SpecError(
            f"token {position} is {value!r:.80}: want a whole number from 0 to {2**32 - 1}"
        )
    return number


def _pack_extra(extra: Extra) -> bytes:
    if not isinstance(extra, tuple) or len(extra) != 2:
        raise SpecError(f"extra of type {type(extra).__name__}: want Extra(tag, value)")
    tag, value = extra
    if not (isinstance(tag, str) and tag and isinstance(value, bytes)):
        raise SpecError(f"extra with tag {tag!r:.80}: want Extra(tag, value), a text and bytes")
    return _frame(_utf8("extra tag", tag)) + _frame(value)


def _frame(value: bytes) -> bytes:
    return len(value).to_bytes(4, "little") + value


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SpecError(f"{name}: want a text without lone surrogates") from None
