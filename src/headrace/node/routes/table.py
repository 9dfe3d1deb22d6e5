"""What a route is: method, path, role, request, answer and handler, as one struct."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request

from headrace.node.access.roles import VIEW, Who

if TYPE_CHECKING:
    from headrace.node.node import Node

T = TypeVar("T", bound=msgspec.Struct)

LIMIT_MAX = 1_000

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]
PageStart = Annotated[int, Meta(ge=0, le=10_000_000)]


class Call(msgspec.Struct, kw_only=True):
    """One request, taken apart."""

    node: Node
    who: Who
    request: Request
    params: Mapping[str, str]
    """The names in the path."""
    query: Any
    body: Any

    @property
    def address(self) -> str:
        return self.request.client.host if self.request.client else "?"


Handler = Callable[[Call], Awaitable[Any]]


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request without parameters."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route."""

    method: str
    path: str
    """Below ``/api/v1``; names in braces are decoded segments of the address."""
    summary: str
    handler: Handler
    answer: Any
    """The type of the answer; None for streams and files."""
    role: str = VIEW
    query: type = NoQuery
    body: Any = None
    changes: bool = False
    """Whether it changes anything: then it is recorded, and not there with --read-only."""
    media: str = "application/json"
    cli: str = ""
    """The command that does the same."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


class Paged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a list that the server sorts and filters."""

    limit: Limit = 100
    offset: PageStart = 0
    sort: str = ""
    """A field, with ``-`` before it for the greatest first."""
    q: str = ""
    """Text that the name holds."""


def page_of(rows: list[T], paged: Paged, key: Callable[[T], str]) -> tuple[list[T], int]:
    """Those rows that fit, sorted and cut; and how many fit."""
    found = [row for row in rows if paged.q.lower() in key(row).lower()] if paged.q else rows
    if paged.sort:
        field, down = paged.sort.lstrip("-"), paged.sort.startswith("-")
        names = {each.name for each in msgspec.structs.fields(type(found[0]))} if found else set()
        if found and field not in names:
            from headrace.errors import InvalidInputError

            raise InvalidInputError(f"sort={paged.sort!r}: there are {', '.join(sorted(names))}")
        found = sorted(found, key=lambda row: _sortable(getattr(row, field)), reverse=down)
    return found[paged.offset : paged.offset + paged.limit], len(found)


def _sortable(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    if isinstance(value, tuple | list):
        return (1, len(value))
    return (2, str(value))
