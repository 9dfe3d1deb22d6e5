"""How a failed command ends: one line that says what happened and what to do, and a status."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping

from headrace.cli.wording import in_own_words
from headrace.errors import (
    EpochStreamEndedError,
    FrontierError,
    HeadraceError,
    IllegalTimeError,
    InvalidInputError,
    LateEventError,
    OtherEpochsError,
    PublisherInUseError,
    StreamOfGroupExistsError,
    UnknownCheckpointError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownPublisherError,
    UnknownSchemeError,
    UnknownSegmentError,
    UnknownSessionError,
    UnknownSharedGroupError,
    UnknownStreamError,
    UnknownStreamOfGroupError,
)

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
NAME_CHARS_MAX = 300
UNKNOWN_NAME = (
    UnknownCheckpointError
    | UnknownGroupError
    | UnknownMemberError
    | UnknownPublisherError
    | UnknownSegmentError
    | UnknownSessionError
    | UnknownSharedGroupError
    | UnknownStreamError
    | UnknownStreamOfGroupError
)
"""A name in the command that does not exist: bad input, like any other typo."""

REFUSED_EPOCH = (
    EpochStreamEndedError
    | FrontierError
    | IllegalTimeError
    | LateEventError
    | OtherEpochsError
    | PublisherInUseError
)
"""What an epoch stream does not take, and nothing was changed by."""

_PASSWORD_OPTION = re.compile(
    r"""((?:password|passfile|sslpassword|secret[a-z_]*|[a-z_]*_key|[a-z_]*token)\s*=\s*)"""
    r"""(?:'(?:\\.|[^'])*'|[^\s&;,'"]+)""",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(://[^\s/@:]*):[^\s]*@")
"""Up to the last ``@``: whoever forgot to escape one in a password must not see it here."""


class UsageError(InvalidInputError):
    """Options that do not go together, or text that is not what an option takes."""


class MissingExtraError(HeadraceError):
    """The command needs a package that is not installed."""


class CheckFailedError(HeadraceError):
    """The command ran, and what it found is not what must hold."""


class StoppedError(HeadraceError):
    """A long command failed on the way; ``published_events`` before that are in the log."""

    def __init__(self, cause: HeadraceError, published_events: int) -> None:
        count = published_events
        before = "1 event" if count == 1 else f"{count:,} events"
        super().__init__(f"{cause}; {before} before that stayed published")
        self.cause = cause
        self.published_events = published_events


class MachineError(HeadraceError):
    """The operating system refused something: a name, a permission, room on a disk."""


def in_a_sentence(error: Exception) -> HeadraceError | None:
    """What a person is told of an error; None if it is a mistake in this program."""
    match error:
        case HeadraceError():
            return error
        case RecursionError():
            return InvalidInputError("the input is nested too deeply")
        case OSError(strerror=str(reason)):
            name = error.filename
            named = "" if name is None else f"{_cut(os.fsdecode(name))}: "
            return MachineError(f"{named}{reason}")
    return None


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX // 2]}…"


def status_of(error: HeadraceError) -> int:
    if isinstance(error, StoppedError):
        error = error.cause
    bad_input = isinstance(
        error,
        InvalidInputError
        | UnknownSchemeError
        | StreamOfGroupExistsError
        | UNKNOWN_NAME
        | REFUSED_EPOCH,
    )
    return EXIT_USAGE if bad_input else EXIT_FAILED


def report(
    error: Exception, as_json: bool, *, hint: str = "", options: Mapping[str, str] | None = None
) -> None:
    """Say on stderr what went wrong; a password in an address is never shown.

    ``options`` are those of the command, by the names that the library has for them.
    """
    said = str(error) if isinstance(error, UsageError) else in_own_words(str(error), options or {})
    message = without_passwords(" ".join(f"{said} {hint}".split()))
    if as_json:
        cause = error.cause if isinstance(error, StoppedError) else error
        told: dict[str, str | int] = {"error": type(cause).__name__, "message": message}
        if isinstance(error, StoppedError):
            told["published_events"] = error.published_events
        shown = json.dumps(told, ensure_ascii=False)
    else:
        shown = f"headrace: {message}"
    print(shown, file=sys.stderr, flush=True)


def shown_place(place: str) -> str:
    """The address of a catalog as it may be shown."""
    if place.startswith(("postgresql:", "postgres:")):
        from headrace.catalog.postgres_options import without_password

        return without_password(place)
    return without_passwords(place)


def without_passwords(text: str) -> str:
    """The text with the passwords of its addresses left out.

    >>> without_passwords("cannot reach postgresql://ann:secret@db/app")
    'cannot reach postgresql://ann:***@db/app'
    """
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))
