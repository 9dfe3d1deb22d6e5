"""Roles, and what a scope of subjects lets somebody see.

==========  ===============================================================================
view        state: streams, groups, lag, decisions, findings; no payload of any event
read        view, and payloads: events, dead letters
publish     view, and publishing
consume     view, and consuming
admin       all of it, and changes
==========  ===============================================================================

A scope hides what lies outside of it: whoever asks is told that it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.catalog.streams import Stream
from headrace.errors import InvalidInputError
from headrace.groups.shapes import GroupView
from headrace.node.shapes import Look
from headrace.subjects import overlaps, parse_filter

VIEW, READ, PUBLISH, CONSUME, ADMIN = "view", "read", "publish", "consume", "admin"
ROLES = (VIEW, READ, PUBLISH, CONSUME, ADMIN)
NOBODY = "anybody"
"""What a route asks for that needs no token."""


class Who(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is let in."""

    name: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    """Nothing: all of them."""
    by_cookie: bool = False

    def may(self, role: str) -> bool:
        """Whether the roles allow what a route asks for."""
        return role in (NOBODY, VIEW) or role in self.roles or ADMIN in self.roles

    @property
    def scoped(self) -> bool:
        return bool(self.subjects)

    def sees_subjects(self, subjects: Iterable[str]) -> bool:
        """Whether some of what these filters match lies in the scope."""
        if not self.subjects:
            return True
        return any(overlaps(one, own) for one in subjects for own in self.subjects)

    def sees_stream(self, stream: Stream) -> bool:
        return self.sees_subjects(stream.config.subjects)

    def sees_group(self, group: GroupView, look: Look) -> bool:
        """A group is seen with one of its streams; one that has a filter, by that."""
        if not self.subjects:
            return True
        if group.filter and not group.stream and not group.streams:
            return self.sees_subjects([group.filter])
        named = [*group.streams, *([group.stream] if group.stream else ())]
        streams = [look.streams[name] for name in named if name in look.streams]
        return any(self.sees_stream(stream) for stream in streams)


def check_roles(roles: Iterable[str]) -> tuple[str, ...]:
    """Roles that exist, each once."""
    found = tuple(dict.fromkeys(roles))
    for role in found:
        if role not in ROLES:
            raise InvalidInputError(f"role {role!r}: there are {', '.join(ROLES)}")
    if not found:
        raise InvalidInputError(f"give at least one role: {', '.join(ROLES)}")
    return found


def check_scope(subjects: Iterable[str]) -> tuple[str, ...]:
    """Filters of subjects, each well-formed."""
    return tuple(dict.fromkeys(parse_filter(each) for each in subjects))
