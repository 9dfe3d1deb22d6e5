"""Opening the catalog of a region that is to be linked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import (
    CatalogTooNewError,
    CatalogTooOldError,
    LinkError,
    NotACatalogError,
    RegionUnreachableError,
)
from headrace.log.log import Log
from headrace.log.open import look_log, open_log
from headrace.regions.records import LinkMember
from headrace.regions.runtime.neighbours import address


def open_region(member: LinkMember, variables: Mapping[str, str], *, look: bool) -> Log:
    """The log of a region that is to be linked; what is wrong with its address is refused."""
    if "://" not in member.catalog and not Path(member.catalog).exists():
        raise LinkError(
            f"there is no catalog at {member.catalog}; make it, where region {member.region!r} is "
            f"to be: headrace --catalog {member.catalog} region name {member.region}"
        )
    try:
        where = address(member, variables)
        if look:
            return look_log(where, member.store)
        return open_log(where, member.store, create=False)
    except (CatalogTooNewError, CatalogTooOldError, NotACatalogError) as error:
        raise LinkError(f"region {member.region!r} cannot be linked: {error}") from error
    except RegionUnreachableError as error:  # where its password is said to be, there is none
        raise LinkError(f"{error}; set it, or name another with --credentials") from error
