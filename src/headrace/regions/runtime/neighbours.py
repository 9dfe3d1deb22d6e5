"""Other regions' logs, opened to be read and for nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

from headrace.errors import HeadraceError, LinkError, RegionUnreachableError
from headrace.log.log import Log
from headrace.log.open import look_log
from headrace.regions.records import LinkMember, get_region


class Neighbours:
    """The logs of other regions that one program reads; each is opened once."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._opened: dict[tuple[str, str, str | None], Log] = {}
        self._lock = threading.Lock()

    def log(self, member: LinkMember) -> Log:
        """The log of a region; raises ``RegionUnreachableError`` while it cannot be read."""
        key = member.region, member.catalog, member.store
        with self._lock:
            found = self._opened.get(key)
        if found is None:
            found = self._open(member)
            with self._lock:
                kept = self._opened.setdefault(key, found)
            if kept is not found:
                found.catalog.close()
                found = kept
        return found

    def _open(self, member: LinkMember) -> Log:
        try:
            log = look_log(address(member, self._environ), member.store)
        except RegionUnreachableError:
            raise
        except HeadraceError as error:
            raise RegionUnreachableError(member.region, str(error)) from error
        try:
            found = log.catalog.read(get_region)
        except BaseException as error:
            log.catalog.close()
            raise RegionUnreachableError(member.region, str(error)) from error
        if found is None or found.name != member.region:
            log.catalog.close()
            raise RegionUnreachableError(
                member.region,
                f"the catalog at {member.catalog} "
                + ("has no region's name" if found is None else f"is region {found.name!r}"),
            )
        return log

    def address(self, member: LinkMember) -> str:
        """Where a region is, with its password, for who may write there."""
        return address(member, self._environ)

    def drop(self, member: LinkMember) -> None:
        """Open a region anew at the next call: its connection failed."""
        with self._lock:
            found = self._opened.pop((member.region, member.catalog, member.store), None)
        if found is not None:
            found.catalog.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            opened, self._opened = list(self._opened.values()), {}
        for log in opened:
            log.catalog.close()


def address(member: LinkMember, environ: Mapping[str, str]) -> str:
    """A region's address with its password, which is never stored or shown."""
    if member.credentials is None:
        return member.catalog
    scheme, _, name = member.credentials.partition(":")
    if scheme != "env" or not name:
        raise LinkError(f"credentials {member.credentials!r} are not known; write env:NAME")
    password = environ.get(name)
    if password is None:
        raise RegionUnreachableError(
            member.region, f"the environment has no {name}, which holds its password"
        )
    parts = urlsplit(member.catalog)
    user, at, host = parts.netloc.rpartition("@")
    netloc = f"{user}:{quote(password, safe='')}{at or '@'}{host}"
    return urlunsplit(parts._replace(netloc=netloc))
