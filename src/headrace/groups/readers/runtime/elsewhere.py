"""A reader group that is in other regions as well: what goes there, and where it goes on here.

Theory of operation
-------------------
Rows of progress are exchanged as those of any other group (:mod:`headrace.regions`).  The state
that its readers share is this region's own: it says where segments were *freed*, and while the
group is consumed elsewhere the rows go on without it.  So the group is *away* from the moment at
which it leaves, or is made here because it is elsewhere, until somebody reads here again.  The
first reader that joins then brings the state up to the rows, in the transaction of its joining:
what is finished by them is over, and what is ready stands where it is acked up to.  Checkpoints
are places of this region's log with what was acked there, and stay here; they are forgotten if the
group went on elsewhere.

A reset, another config and a checkpoint are asked for where the group is at home: elsewhere the
state is old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.catalog import Tx
from headrace.errors import GroupUpdateError, ReaderGroupElsewhereError, UnreadableRecordError
from headrace.groups import homes
from headrace.groups.readers.core import cuts
from headrace.groups.readers.core.segments import Cut, SegmentId
from headrace.groups.readers.core.settings import GroupConfig
from headrace.groups.readers.core.updates import (
    AddStreams,
    Configure,
    CreateCheckpoint,
    DropStreams,
    Reset,
    ResetToCheckpoint,
    Update,
)
from headrace.groups.readers.names import ReaderGroupName, ReaderGroupRecord
from headrace.groups.readers.runtime import retention
from headrace.log import order

if TYPE_CHECKING:
    from headrace.groups.readers.runtime.transaction import GroupCommit

_AT_HOME = {
    Reset: "it is reset where it is at home",
    ResetToCheckpoint: "it is reset where it is at home",
    Configure: "it is configured where it is at home",
    CreateCheckpoint: "checkpoints and cuts are taken where it is at home",
}


class ReaderGroupOfRegions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a reader group is made of in a region that does not have it."""

    streams: tuple[str, ...]
    start: str
    """Where it began, in words: its start is never applied a second time."""
    config: GroupConfig
    filter: str | None = None


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ReaderGroupOfRegions)


def encode(record: ReaderGroupRecord, config: GroupConfig) -> bytes:
    """What of a group goes to other regions."""
    read = tuple(stream.name for stream in record.streams)
    return _encoder.encode(ReaderGroupOfRegions(read, record.start, config, record.filter))


def decode(name: ReaderGroupName, data: bytes) -> ReaderGroupOfRegions:
    """The inverse of :func:`encode`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableRecordError(
            f"what another region says of reader group {name.group!r} cannot be read: {error}; "
            f"replicate it no longer: headrace region group disable {name}",
            name.key,
        ) from None


# --- what is refused -------------------------------------------------------------------------


def check(commit: GroupCommit, update: Update) -> None:
    """Refuse what cannot be said in this region, or of a group that is in several."""
    tx, name = commit.tx, commit.name
    if isinstance(update, AddStreams | DropStreams):
        if homes.replicated(tx, name.key) is not None:
            raise GroupUpdateError(
                f"reader group {name.group!r} is in other regions as well, and its streams stay "
                "as they are; replicate it no longer, and enable it again afterwards: headrace "
                f"region group disable {name}"
            )
    elif (what := _AT_HOME.get(type(update))) and (why := homes.waits_here(tx, name.key)):
        raise ReaderGroupElsewhereError(name.group, why, what)
    elif isinstance(update, CreateCheckpoint):
        come_back(commit)


def check_here(tx: Tx, name: ReaderGroupName, what: str) -> None:
    """Refuse what is said where the group is at home."""
    if why := homes.waits_here(tx, name.key):
        raise ReaderGroupElsewhereError(name.group, why, what)


def check_joining(tx: Tx, name: ReaderGroupName, number: int | None) -> None:
    """Refuse a reader of a program with this number (:class:`.homes.HomeAsking`), if it waits."""
    if waits := homes.standing(tx, name.key, number).waits:
        raise ReaderGroupElsewhereError(name.group, waits)


def check_query(tx: Tx, name: ReaderGroupName) -> None:
    """Refuse a Spark query of a group that is in other regions as well."""
    if homes.replicated(tx, name.key) is not None:
        raise GroupUpdateError(
            f"reader group {name.group!r} is in other regions as well, and Spark queries cannot "
            "hand over what they have open; read it with programs, or replicate it no longer: "
            f"headrace region group disable {name}"
        )


def configured(commit: GroupCommit) -> None:
    """The group has another config: other regions hear of it; holds the lock of their bucket."""
    data = encode(commit.record, commit.state.config)
    homes.configured(commit.tx, commit.name.key, data)


# --- leaving, and coming back ----------------------------------------------------------------


def leave(commit: GroupCommit) -> None:
    """The group goes on elsewhere; nobody reads it here."""
    if not commit.record.away:
        commit.configure(msgspec.structs.replace(commit.record, away=True))
        retention.keep(commit.moment, commit.state)


def come_back(commit: GroupCommit) -> None:
    """Somebody is about to read here again: the state is brought up to what is acked."""
    if not commit.record.away or commit.state.members:
        return
    commit.configure(msgspec.structs.replace(commit.record, away=False))
    state = commit.state
    cut, graph = standing(commit)
    reset = cuts.reset_to(cut, graph)
    waits = {wait.segment: frozenset(wait.predecessors) for wait in reset.waits}
    if dict(state.unassigned) == cut and state.future == waits:
        retention.keep(commit.moment, state)
    else:
        commit.put(reset, came_back=True)


def standing(commit: GroupCommit) -> tuple[Cut, Mapping[SegmentId, tuple[SegmentId, ...]]]:
    """What can be read next by the rows of progress, and where."""
    found = commit.moment.map()
    progress = commit.moment.progress(found.extents)
    over = {
        segment
        for segment, extent in found.extents.items()
        if extent.sealed and progress[segment].floor >= extent.head
    }
    ready = order.standing(found.graph, over).ready
    return {segment: progress[segment].floor for segment in sorted(ready)}, found.graph
