"""Which region writes a stream that one region writes, and how another one takes it over.

Pull only: a region changes its own record and reads the others'.  Whoever is to write *wants* it,
under a stamp beyond the last one.  The writer reads that, stops, and says who writes now, under
that stamp: from this transaction on nothing is published there.  Whoever it named begins when
everything that the *giver* had by then has come; hearing of it from a third region is not enough.
So two regions never write at the same time, and the order of a key goes on.

A region whose writer is gone may begin at once, under a stamp of its own (*by force*).  The old
writer, if it is there after all, stops when it reads of it; what it published until then crosses as
ever, since lanes are apart.
"""

from __future__ import annotations

import msgspec

from headrace.regions.core.stamps import Stamp


class Writing(msgspec.Struct, frozen=True):
    """What one region knows of who writes a stream."""

    writer: str
    stamp: Stamp = Stamp()
    """Of two regions' words the later counts."""
    wants: Stamp | None = None
    """The stamp under which this region wants to write."""
    giver: str = ""
    """The region that wrote before, and stopped."""

    def want(self, me: str) -> Writing:
        """This region wants to write from now on.

        >>> Writing("eu").want("us").wants
        Stamp(counter=1, region='us')
        """
        return msgspec.structs.replace(self, wants=self._next(me))

    def withdraw(self) -> Writing:
        """It no longer does; what was handed over to it meanwhile counts all the same."""
        return msgspec.structs.replace(self, wants=None)

    def force(self, me: str) -> Writing:
        """This region writes from now on, whatever the others do."""
        return Writing(me, self._next(me))

    def _next(self, me: str) -> Stamp:
        return Stamp(self.stamp.counter + 1, me)


def follow(me: str, mine: Writing, source: str, theirs: Writing, *, complete: bool) -> Writing:
    """What a region knows after it has read another one.

    ``complete``: everything is here that the other one had when it was read.

    >>> eu, us = Writing("eu"), Writing("eu").want("us")
    >>> eu = follow("eu", eu, "us", us, complete=False); eu.writer
    'us'
    >>> follow("us", us, "eu", eu, complete=False).writer
    'eu'
    >>> follow("us", us, "eu", eu, complete=True).writer
    'us'
    """
    if theirs.stamp > mine.stamp:
        if theirs.writer == me and not (complete and source == theirs.giver):
            return mine
        wants = mine.wants if mine.wants is not None and mine.wants > theirs.stamp else None
        return msgspec.structs.replace(theirs, wants=wants)
    if mine.writer == me and theirs.wants is not None and theirs.wants > mine.stamp:
        return Writing(source, theirs.wants, giver=me)
    return mine
