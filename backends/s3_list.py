"""Listing of S3, page by page: what stands in each, and when there is no end. It makes no request.

obstore's own listing ends at the first name that is no path of its own (``a//b``), shows ``a/`` as
``a``, descends into folders, and asks for ever where a server says "go on" for ever.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus
from xml.parsers.expat import ExpatError, ParserCreate

from unikv.store import Entry

PAGE = 1000  # entries that are asked for at once; S3 gives no more
BARREN = 100  # pages in a row that hold nothing; S3 gives some where much was deleted
ROOT = "ListBucketResult"
_SIZE = re.compile(r"[0-9]{1,18}\Z")
_MOST_TEXT = 1 << 16  # characters of one value


class OddListing(Exception):  # noqa: N818 - it is the listing that is odd
    """An answer that is no page of a listing, or one that cannot be the next."""


class Page(NamedTuple):
    """What stands in one answer. Names are as the server wrote them."""

    found: list[Entry]
    folders: int
    encoded: bool
    token: str | None


def list_objects(
    ask: Callable[[dict[str, str]], bytes], folder: str, prefix: str
) -> Iterator[Entry]:
    """Stream what lies in a folder, with its name there; what lies deeper is not asked for.

    Args:
        ask: gets one page; it is given what to ask for, and returns the answer to that.
        folder: empty, or with a slash at its end.
        prefix: what S3 is to look for, ``folder`` or more.

    Raises:
        OddListing: an answer is no page of a listing, or there will be no end of them.
    """
    query = {
        "list-type": "2",
        "delimiter": "/",
        "encoding-type": "url",  # XML has no way to write some names
        "max-keys": str(PAGE),
        "prefix": prefix,
    }
    seen: set[str] = set()
    barren = 0
    while True:
        page = read_page(ask(query))
        for entry in page.found:
            for name in _spellings(entry.key, encoded=page.encoded):
                if name.startswith(folder):
                    yield entry._replace(key=name[len(folder) :])
                    break
        if page.token is None:
            return
        barren = 0 if page.found or page.folders else barren + 1
        if page.token in seen or barren > BARREN:
            raise OddListing("its listing has no end")
        seen.add(page.token)
        query["continuation-token"] = page.token


def _spellings(text: str, *, encoded: bool) -> tuple[str, ...]:
    """Return what a name may mean: a space is written as %20 or as +, and by some / as %2F."""
    return (unquote(text), unquote_plus(text)) if encoded else (text,)


def read_page(body: bytes) -> Page:
    """Return what stands in an answer.

    Raises:
        OddListing: it is no page of a listing.
    """
    reader = _Reader()
    try:
        reader.parser.Parse(body, True)  # noqa: FBT003 - expat's own
    except (ExpatError, LookupError, ValueError):  # the last two of an encoding
        raise OddListing("its listing is no XML") from None
    if reader.truncated and not reader.token:
        raise OddListing("its listing goes on, but it does not say where")
    return Page(
        reader.found,
        reader.folders,
        reader.encoded,
        (reader.token or None) if reader.truncated else None,
    )


class _Reader:
    """Takes the values out of the XML as they come; it builds no tree."""

    def __init__(self) -> None:
        self.parser = ParserCreate()
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.buffer_text = True
        self.found: list[Entry] = []
        self.folders = 0
        self.encoded = self.truncated = False
        self.token = ""
        self._depth = 0
        self._inside = ""  # the element beneath the root that is open
        self._name = ""  # the element that is open, if it is one of those that count
        self._value = ""
        self._entry: dict[str, str] = {}

    def _refuse(self, *_: object) -> None:
        raise OddListing("its listing has a document type")

    def _begin(self, tag: str, _: object) -> None:
        name = tag.rpartition(":")[2]
        self._depth += 1
        if self._depth == 1 and name != ROOT:
            raise OddListing(f"its answer to a listing is no {ROOT}")
        if self._depth == 2:
            self._inside, self._entry = name, {}
            self.folders += name == "CommonPrefixes"
        self._name = name if self._depth in (2, 3) else ""
        self._value = ""

    def _text(self, text: str) -> None:
        if self._name:
            self._value += text
            if len(self._value) > _MOST_TEXT:
                raise OddListing("its listing holds a name without end")

    def _end(self, _: str) -> None:
        if self._depth == 3 and self._inside == "Contents" and self._name:
            self._entry[self._name] = self._value
        elif self._depth == 2:
            self._note()
        self._depth -= 1
        self._name = ""

    def _note(self) -> None:
        """Take in an element beneath the root, which ends here."""
        if self._inside == "Contents":
            self.found.append(_entry(self._entry))
        elif self._inside == "IsTruncated":
            self.truncated = self._value.strip() == "true"
        elif self._inside == "NextContinuationToken":
            self.token = self._value
        elif self._inside == "EncodingType":
            self.encoded = self._value.strip() == "url"


def _entry(values: dict[str, str]) -> Entry:
    """Return an object as a page shows it."""
    size = values.get("Size", "").strip()
    if not values.get("Key") or not _SIZE.match(size):
        raise OddListing("its listing holds an object without a name or a size")
    try:
        when = datetime.fromisoformat(values.get("LastModified", "").strip()).timestamp()
    except (ValueError, OverflowError):
        when = None
    return Entry(values["Key"], int(size), when)
