"""The status of a catalog: streams and rates, groups, pipeline, sessions, and what is wanting.

All of it is from one snapshot.  Damage is looked for where it hurts next: in the batches that
groups are about to read, up to a bound.  Files are not opened for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from headrace.catalog import Tx, batches, overview, streams
from headrace.catalog.keys import is_damaged
from headrace.catalog.records import Records
from headrace.catalog.streams import Stream
from headrace.groups import chores, findings, names, view
from headrace.groups.findings import BEHIND_S, moment
from headrace.groups.partitioned.filling import PIPELINE, UP
from headrace.groups.picture import Picture
from headrace.groups.shapes import Finding, GroupView
from headrace.groups.shared.keys import SESSIONS_BUCKET, session_lease
from headrace.log import checksums

RATE_S = 60
RATED_SEGMENTS_MAX = 256
"""Rates are not looked up for more segments than this."""
CHECKED_MAX = 200
CHECKED_BYTES_MAX = 16 * 1024 * 1024


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a line."""

    stream: str
    segments: int
    """Those that are open."""
    retained_events: int
    retained_bytes: int
    rate_events_per_s: float | None
    """The rate of the last minute; null where it was not looked up."""
    newest_at: datetime | None
    """The greatest time of an event."""
    consumers: tuple[str, ...]
    """The groups that consume it."""


class PipelineLine(msgspec.Struct, frozen=True, kw_only=True, rename={"owner": "instance"}):
    """Who runs the jobs that move data in bulk."""

    owner: str | None
    """The supervisor that leads; null if none runs."""
    wanted: bool
    """Whether a group needs one, and ``headrace up`` does not stand in for it."""
    jobs: int
    failing: int


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a worker."""

    session: str
    instance: str | None
    """Who runs it; null if nobody does."""


class ChoreLine(msgspec.Struct, frozen=True, kw_only=True):
    """What some open program does for the whole catalog now and then."""

    chore: str
    """``retention``, ``scaling`` or ``sweep``."""
    done_at: datetime | None = None
    """When it was last done; null if it never was."""
    instance: str | None = None
    """The program that did it."""
    failed: bool = False
    note: str = ""
    """What came of it."""


class CatalogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog at one moment."""

    seen_at: datetime
    well: bool
    """Whether nothing needs a person."""
    streams: tuple[StreamStatus, ...]
    groups: tuple[GroupView, ...]
    """Without their units."""
    pipeline: PipelineLine
    sessions: tuple[SessionLine, ...]
    chores: tuple[ChoreLine, ...]
    findings: tuple[Finding, ...]
    """What needs a person first."""


class _Job(msgspec.Struct, frozen=True):
    failures: int = 0


_jobs = Records(_Job, "the state of job")


def status(tx: Tx, behind_s: float = BEHIND_S) -> CatalogStatus:
    """Everything that a person wants to see first."""
    wanted = names.all_names(tx)
    picture = view.picture_of_all(tx, wanted)
    return status_of(picture, view.views(picture, wanted), behind_s)


def status_of(
    picture: Picture,
    seen: list[GroupView],
    behind_s: float = BEHIND_S,
    *,
    thorough: bool = True,
) -> CatalogStatus:
    """The status that a picture and its groups show.

    Less thorough, it is without streams, groups and damage.
    """
    found = [finding for each in seen for finding in _findings(each, behind_s)]
    found += [*_unreadable(picture), *_damaged(picture)] if thorough else []
    if any(stream.config.epochs is not None for stream in picture.public):
        # Loaded where there are some: a look at groups does without it.
        from headrace.epochs import findings as of_epochs

        found += of_epochs.of_streams(picture.tx, picture.public, behind_s)
    found.sort(key=lambda each: not each.needs_person)
    return CatalogStatus(
        seen_at=moment(picture.now_us),
        well=not findings.needs_person(found),
        streams=tuple(_streams(picture, seen)) if thorough else (),
        groups=tuple(msgspec.structs.replace(each, units=()) for each in seen) if thorough else (),
        pipeline=_pipeline(picture, seen),
        sessions=tuple(_sessions(picture)),
        chores=tuple(_chores(picture.tx)),
        findings=tuple(found),
    )


def consumers(seen: Iterable[GroupView], stream: str) -> list[GroupView]:
    """The groups that consume a stream, with the units that lie in it."""
    found = []
    for each in seen:
        here = tuple(unit for unit in each.units if unit.stream == stream)
        if each.stream == stream or stream in each.streams or (each.stream is None and here):
            found.append(msgspec.structs.replace(each, units=here))
    return found


def _findings(group: GroupView, behind_s: float) -> Sequence[Finding]:
    """What is wanting of a group, perhaps with another idea of what is far behind."""
    if behind_s == BEHIND_S:
        return group.findings
    rest = [each for each in group.findings if each.finding != "behind"]
    return [*rest, *(f for f in findings.of_lag(group.lag, behind_s) if f.finding == "behind")]


def _streams(picture: Picture, seen: list[GroupView]) -> Iterable[StreamStatus]:
    rated = sum(len(stream.open_segments) for stream in picture.public) <= RATED_SEGMENTS_MAX
    for stream in picture.public:
        newest_us = max((segment.max_ts_us for segment in stream.segments), default=-1)
        yield StreamStatus(
            stream=stream.name,
            segments=len(stream.open_segments),
            retained_events=sum(segment.events for segment in stream.segments),
            retained_bytes=sum(segment.retained_bytes for segment in stream.segments),
            rate_events_per_s=_rate(picture, stream) if rated else None,
            newest_at=moment(newest_us) if newest_us >= 0 else None,
            consumers=tuple(each.group for each in consumers(seen, stream.name)),
        )


def _rate(picture: Picture, stream: Stream) -> float:
    since_us = picture.now_us - RATE_S * 1_000_000
    count = 0
    for segment in stream.open_segments:
        place = batches.first_by_append_time(picture.tx, segment, since_us)
        count += 0 if place is None else segment.head - place.start
    return round(count / RATE_S, 3)


def _pipeline(picture: Picture, seen: list[GroupView]) -> PipelineLine:
    held = picture.held(PIPELINE)
    jobs = [
        _jobs.decode_or(key, data, _Job(failures=1))
        for key, data in picture.entries[PIPELINE].items()
        if key.startswith("job/")
    ]
    return PipelineLine(
        owner=None if held is None else held.owner,
        wanted=picture.held(UP) is None and any(each.kind == "elastic" for each in seen),
        jobs=len(jobs),
        failing=sum(job.failures > 0 for job in jobs),
    )


def _sessions(picture: Picture) -> Iterable[SessionLine]:
    for name in sorted(picture.entries[SESSIONS_BUCKET]):
        if is_damaged(name):  # `headrace session ls` names it
            continue
        held = picture.held(session_lease(name))
        yield SessionLine(session=name, instance=None if held is None else held.owner)


def _chores(tx: Tx) -> Iterable[ChoreLine]:
    done = chores.last_done(tx)
    for chore in chores.CHORES:
        last = done.get(chore)
        if last is None:
            yield ChoreLine(chore=chore)
        else:
            yield ChoreLine(
                chore=chore,
                done_at=moment(last.at_us),
                instance=last.by,
                failed=last.failed,
                note=last.note,
            )


def _unreadable(picture: Picture) -> list[Finding]:
    """Streams whose records are broken."""
    return [
        Finding(
            finding="unreadable",
            about=name,
            sentence=f"stream {name!r} cannot be read: its record is broken, and nobody can "
            "publish to it or consume it",
            next=f"restore the catalog from a backup, or remove it: headrace stream rm {name} "
            "--force",
        )
        for name in streams.names(picture.tx)
        if name not in picture.streams
    ]


def _damaged(picture: Picture) -> list[Finding]:
    """Batches that groups read next and cannot."""
    wanted: dict[tuple[int, int], int] = {}
    picture.read_firsts()
    rows = [row for rows in picture.progress.values() for row in rows.items()]
    size = 0
    for segment_id, reached in (*rows, *picture.firsts.items()):
        place = (segment_id, reached.start or 0)
        if reached.start is None or place in wanted:
            continue
        size += reached.size_bytes or 0
        if len(wanted) >= CHECKED_MAX or size > CHECKED_BYTES_MAX:
            break
        wanted[place] = 0
    places = {
        segment.id: (stream.name, segment.number)
        for stream in picture.streams.values()
        for segment in stream.segments
    }
    found = []
    for blob in overview.blobs(picture.tx, list(wanted)):
        if blob.segment_id not in places:  # of a stream whose own record cannot be read
            continue
        if not checksums.fits(blob.checksum, blob.data, blob.layout):
            stream, number = places[blob.segment_id]
            found.append(
                Finding(
                    finding="damaged",
                    about=stream,
                    sentence=f"the batch of segment {number} with offsets {blob.start} to "
                    f"{blob.end - 1} is damaged: its checksum does not match, and whoever "
                    "comes to it stops there",
                    next="restore it from a backup, or see what is left: headrace read "
                    f"{stream} --skip-damaged",
                )
            )
    return found
