"""Errors as ``application/problem+json``: the class, and the command line's sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from headrace import errors
from headrace.cli.failures import (
    REFUSED_EPOCH,
    UNKNOWN_NAME,
    in_a_sentence,
    without_passwords,
)
from headrace.errors import HeadraceError, InvalidInputError

_log = logging.getLogger(__name__)

DETAIL_CHARS_MAX = 2_000


class Problem(Exception):
    """A refusal that is the node's own."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.headers = dict(headers or {})


class ProblemJson(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, and what to do."""

    type: str = "about:blank"
    title: str
    """The class of the error."""
    status: int
    detail: str


def not_there(what: str) -> Problem:
    """Something that does not exist, or that this token does not see."""
    return Problem(404, "NotThere", f"there is no {what}")


def problem_of(error: Exception) -> Problem:
    """What a client is told of an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, msgspec.MsgspecError | UnicodeDecodeError):
        return Problem(400, "InvalidInput", f"the request cannot be read: {error}")
    found = in_a_sentence(error)
    if found is None:
        _log.error("a request failed", exc_info=error)
        return Problem(500, type(error).__name__, "this is a fault of the node; its log has more")
    return Problem(_status(found), type(found).__name__, str(found))


def _status(error: HeadraceError) -> int:
    if isinstance(error, UNKNOWN_NAME | LookupError):
        return 404
    if isinstance(error, errors.CatalogUnavailableError):
        return 503
    if isinstance(error, InvalidInputError | errors.UnknownSchemeError | REFUSED_EPOCH):
        return 400
    return 409


def response(problem: Problem) -> Response:
    """As it goes out."""
    body = ProblemJson(
        title=problem.error,
        status=problem.status,
        detail=without_passwords(" ".join(problem.detail.split()))[:DETAIL_CHARS_MAX],
    )
    headers = {"cache-control": "no-store", **problem.headers}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(body),
        problem.status,
        headers,
        media_type="application/problem+json",
    )
