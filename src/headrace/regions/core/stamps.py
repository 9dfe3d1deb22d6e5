"""Stamps (Lamport timestamps): which of two commands to a replicated group counts.

A command takes acks back (a seek) or all of them (a delete), and must not be undone by acks or
updates from before it that arrive later.  So it carries a counter beyond every stamp that its
region has met, and the region's name to settle a tie: of two commands the same one wins everywhere.
"""

from __future__ import annotations

import msgspec

STAMP_COUNTER_MAX = 2**62
"""No honest counter comes near it; a higher one would leave no room for a later command."""


class Stamp(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """When a command was given: the higher one wins."""

    counter: int = 0
    region: str = ""


class Life(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """Whether the group is there, since which command."""

    stamp: Stamp = Stamp()
    deleted: bool = False
