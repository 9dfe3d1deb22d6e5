"""The names under which the catalog keeps what belongs to shared groups and sessions."""

from __future__ import annotations

STATUS_BUCKET = "shared-status"
SESSIONS_BUCKET = "sessions"
FINISHED = "shared-finished:"
"""How the buckets of finished units begin; the group's key follows."""


def leader_lease(group: str) -> str:
    """The lease of a group's leader."""
    return f"leader {group}"


def session_lease(session: str) -> str:
    """The lease of whoever runs a session."""
    return f"session {session}"


def finished_bucket(group: str) -> str:
    """Where the finished units of a group are kept."""
    return f"{FINISHED}{group}"


def unit_of_claim(name: str) -> str:
    """A unit, by the name of its claim: one consumer may have the same segment in two groups."""
    return name.partition("@")[0]
