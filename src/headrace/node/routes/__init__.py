"""The routes of the API, in one table."""

from __future__ import annotations

from headrace.node.routes import (
    access,
    changes,
    epochs,
    events,
    findings,
    group_changes,
    groups,
    keys,
    letters,
    live,
    overview,
    readers,
    regions,
    settings,
    streams,
    system,
)
from headrace.node.routes.table import Route

PREFIX = "/api/v1"


def table(*, read_only: bool) -> tuple[Route, ...]:
    """Every route; a node that only reads has none that changes anything but who is in."""
    found = (
        *overview.ROUTES,
        *streams.ROUTES,
        *groups.ROUTES,
        *findings.ROUTES,
        *events.ROUTES,
        *letters.ROUTES,
        *keys.ROUTES,
        *epochs.ROUTES,
        *regions.ROUTES,
        *live.ROUTES,
        *access.ROUTES,
        *system.ROUTES,
        *changes.ROUTES,
        *group_changes.ROUTES,
        *settings.ROUTES,
        *readers.ROUTES,
    )
    return tuple(each for each in found if not (read_only and each.changes))
