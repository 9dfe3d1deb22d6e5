"""The catalog and the store: places that cannot be used, and tokens that are stale."""

from __future__ import annotations

from headrace.errors.inputs import HeadraceError


class CatalogError(HeadraceError):
    """The catalog cannot be used as asked."""


class UnknownSchemeError(CatalogError, ValueError):
    """A catalog or store URL has a scheme that Headrace does not know."""


class NotACatalogError(CatalogError):
    """The place given exists and is not a Headrace catalog; it was left alone."""


class CatalogTooNewError(CatalogError):
    """The catalog was written by a newer Headrace."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where} has schema version {found}, and this Headrace knows versions up to {known}: "
            "upgrade Headrace to open it"
        )
        self.found = found
        self.known = known


class CatalogUnavailableError(CatalogError):
    """The catalog cannot be reached or did not answer."""


class CatalogClosedError(CatalogError):
    """The catalog was closed; open it again."""


class ForkedError(CatalogClosedError):
    """The log was opened before this process was forked off; it has to open one of its own."""

    def __init__(
        self, message: str = "this log was opened before a fork; open it again in this process"
    ) -> None:
        super().__init__(message)


class UnreadableRecordError(CatalogError):
    """A record of the catalog cannot be read; ``name`` is whose it is.  All others can be."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class DiskFullError(HeadraceError):
    """There is no room to write; nothing of the operation was kept."""


class ConflictError(HeadraceError):
    """A conditional change found another revision than it expected."""

    def __init__(self, bucket: str, key: str, expected: int, found: int) -> None:
        wanted = "no entry" if expected == 0 else f"revision {expected}"
        actual = "there is none" if found == 0 else f"it is at revision {found}"
        super().__init__(
            f"entry {key!r} in {bucket!r}: expected {wanted}, but {actual}; read it again and retry"
        )
        self.bucket = bucket
        self.key = key
        self.expected = expected
        self.found = found


class LeaseLost(HeadraceError):
    """A lease is no longer held under the token given."""

    def __init__(self, name: str, token: int) -> None:
        super().__init__(
            f"lease {name!r} is no longer held under token {token}: it expired, was released or "
            "was taken over; acquire it again"
        )
        self.name = name
        self.token = token


class Fenced(HeadraceError):
    """The caller's token is stale: the unit is no longer the caller's, and the work does not count.

    ``current`` is the token that the catalog holds, 0 if it holds none, and None where the refusal
    came without looking there.
    """

    def __init__(self, group: str, unit: str, token: int, current: int | None = None) -> None:
        if current is None:
            now = ""
        elif current == 0:
            now = ", the unit has no owner"
        elif current == token:
            now = ", the unit was given back"
        else:
            now = f", the current one is {current}"
        super().__init__(
            f"group {group!r}, unit {unit!r}: token {token} is stale{now}; stop working on this "
            "unit"
        )
        self.group = group
        self.unit = unit
        self.token = token
        self.current = current


class StoreError(HeadraceError):
    """The store of batch files cannot be used as asked."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached or refused the request."""
