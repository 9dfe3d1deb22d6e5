"""Partitioned groups as everybody sees them: members, partitions, lag and what is wanting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog.leases import Ended
from headrace.catalog.overview import Reached
from headrace.catalog.records import Records
from headrace.catalog.streams import Stream
from headrace.groups import findings, hearing, homes, lag
from headrace.groups.decisions.core.record import ranges, units_text
from headrace.groups.kinds import KindOfGroups
from headrace.groups.names import PARTITIONED, FullName
from headrace.groups.partitioned.core.config import (
    ElasticGroupConfig,
    GroupConfig,
)
from headrace.groups.partitioned.filling import PIPELINE, UP, Filling, JobNote, job_key
from headrace.groups.partitioned.layout import Layout, kind_of, layout_of
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET, GroupName
from headrace.groups.partitioned.stored import elastic_config, static_config
from headrace.groups.picture import CatalogReach, Picture
from headrace.groups.shapes import Finding, GroupLag, GroupMember, GroupView, UnitView

_notes = Records(JobNote, "the state of job")


class Partitioned(KindOfGroups):
    """Static and elastic groups."""

    family = PARTITIONED
    buckets = (STATIC_BUCKET, ELASTIC_BUCKET, PIPELINE)

    def keys(self, name: FullName) -> Sequence[str]:
        return [name.key, job_key(name.partitioned)]

    def reach(
        self,
        name: FullName,
        entries: Mapping[str, Mapping[str, bytes]],
        own: object,  # noqa: ARG002
    ) -> CatalogReach:
        group = name.partitioned
        members = _config(group, entries).assignment()
        return CatalogReach(
            readers=[
                *(group.key, group.partition_job, group.consumed),
                *(group.share(each) for each in members),
            ],
            streams=[group.stream, group.work_queue],
            leases=[group.pin("x")[:-1], PIPELINE, UP],
        )

    def view(self, name: FullName, picture: Picture) -> GroupView:
        group = name.partitioned
        config = _config(group, picture.entries)
        source = picture.streams.get(group.stream)
        kind = kind_of(config).value
        if source is None:
            return _without_stream(name, kind, config)
        look = _Look(picture, group, config, source)
        text = str(name)
        units, behind, filling = look.behind(text, kind)
        members = look.members(units)
        return GroupView(
            group=text,
            kind=kind,
            stream=group.stream,
            filter=config.filter or None,
            members=members,
            members_active=sum(member.instance is not None for member in members),
            members_wanted=sum(member.share > 0 for member in members),
            lag=behind,
            units=tuple(units),
            findings=tuple(_findings(name, text, members, units, behind, filling)),
        )

    def lag(self, name: FullName, picture: Picture) -> GroupLag:
        group = name.partitioned
        config = _config(group, picture.entries)
        source = picture.streams.get(group.stream)
        kind = kind_of(config).value
        if source is None:
            return lag.total(str(name), kind, [])
        look = _Look(picture, group, config, source)
        units, behind, _ = look.behind(str(name), kind)
        return msgspec.structs.replace(behind, units=tuple(units))


KIND = Partitioned()


def _config(group: GroupName, entries: Mapping[str, Mapping[str, bytes]]) -> GroupConfig:
    static = entries[STATIC_BUCKET].get(group.key)
    if static is not None:
        return static_config(group, static)
    return elastic_config(group, entries[ELASTIC_BUCKET][group.key])


class _Look:
    """One group in a picture."""

    def __init__(
        self, picture: Picture, group: GroupName, config: GroupConfig, source: Stream
    ) -> None:
        self.picture = picture
        self.group = group
        self.config = config
        self.source_stream = source
        self.layout = layout_of(config, source.config)
        self.elastic = isinstance(config, ElasticGroupConfig)
        read = group.work_queue if self.elastic else group.stream
        self.read = picture.streams.get(read)
        self.claims = picture.claims.get(group.key, {})
        self.pins: dict[str, Ended | None] = {}
        self.owners: dict[str, tuple[str | None, str | None]] = {}

    def behind(self, name: str, kind: str) -> tuple[list[UnitView], GroupLag, Filling]:
        """The units, how far the group is behind, and who fills its work queue."""
        units, counted = self._units()
        left, filling = self._source()
        return units, lag.total(name, kind, counted, left, finding=filling.finding), filling

    def _units(self) -> tuple[list[UnitView], list[UnitView]]:
        """The units, and what counts of them: members that read shares miss the same events."""
        if self.read is None:
            return [], []
        if self.layout is Layout.SHARES:
            return self._shares(self.read)
        found = self._segments(self.read)
        return found, found

    def _segments(self, read: Stream) -> list[UnitView]:
        given = {p: m for m, owned in self.config.assignment().items() for p in owned}
        exact = self.elastic or lag.is_exact([self.config.filter], read)
        picture, now_us, reader = self.picture, self.picture.now_us, self.group.key
        begun = picture.progress.get(reader, {})
        found = []
        for segment in read.segments:
            reached = begun.get(segment.id) or picture.reached(reader, segment)
            number = str(segment.number)
            member, instance, token = self._owner(number)
            wanted = given.get(segment.number)
            found.append(
                lag.unit_view(
                    reached,
                    segment,
                    now_us,
                    unit=number,
                    stream=read.name,
                    markers=picture.markers(reached, segment) if segment.markers else 0,
                    exact=exact,
                    member=member or wanted,
                    instance=instance,
                    token=token,
                    state=_state(member, wanted),
                    partitions=(segment.number,),
                )
            )
        return found

    def _owner(self, unit: str) -> tuple[str | None, str | None, int]:
        """Member, instance and token of a claim whose owner still holds its pin."""
        owner, token = self.claims.get(unit, (None, 0))
        if owner is None:
            return None, None, token
        known = self.owners.get(owner)
        if known is None:
            known = self.owners[owner] = self._pinned(owner)
        return *known, token

    def _pinned(self, owner: str) -> tuple[str | None, str | None]:
        """Member and instance of an owner, if it still holds its pin."""
        member, _, rest = owner.partition(".")
        instance, _, pin_token = rest.partition(".")
        pin = self._pin(member)
        if pin is None or pin.owner != instance or str(pin.token) != pin_token:
            return None, None
        return member, instance

    def _pin(self, member: str) -> Ended | None:
        """The pin of a member, if it is held now."""
        if member not in self.pins:
            self.pins[member] = self.picture.held(f"pin.{self.group.key}.{member}")
        return self.pins[member]

    def _shares(self, read: Stream) -> tuple[list[UnitView], list[UnitView]]:
        rest = self.config.filter or ">"
        found: list[UnitView] = []
        by_segment: dict[int, list[tuple[UnitView, lag.OffsetRanges]]] = {}
        owners = [(m, owned) for m, owned in self.config.assignment().items() if owned]
        for index, (wanted, owned) in enumerate(owners):
            share, parts = self.group.share(wanted), []
            member, instance, token = self._owner(str(index))
            exact = lag.is_exact([f"{p}.{rest}" for p in owned], read)
            for segment in read.segments:
                reached = self.picture.reached(share, segment)
                part = lag.unit_view(
                    reached,
                    segment,
                    self.picture.now_us,
                    unit=wanted,
                    stream=read.name,
                    markers=self.picture.markers(reached, segment),
                    exact=exact,
                )
                parts.append(part)
                missed = lag.missed(reached, segment.head)
                by_segment.setdefault(segment.id, []).append((part, missed))
            found.append(
                lag.joined(
                    parts,
                    unit=wanted,
                    stream=read.name,
                    member=wanted,
                    instance=instance,
                    token=token,
                    state=_state(member, wanted),
                    partitions=owned,
                )
            )
        every = {segment.id: segment for segment in read.segments}
        marked = self.picture.markers
        counted = [
            lag.counted_once([p for p, _ in both], every[at], [r for _, r in both], marked)
            for at, both in by_segment.items()
        ]
        return found, counted

    def _source(self) -> tuple[list[UnitView], Filling]:
        """What is not in the work queue of an elastic group yet, and who fills it."""
        group, picture = self.group, self.picture
        if not self.elastic:
            return [], Filling(group, (), 0, led=True, up=False, job=None)
        exact = lag.is_exact([self.config.filter], self.source_stream)
        left, reader = [], group.partition_job
        begun, consumed = (picture.progress.get(r, {}) for r in (reader, group.consumed))
        for segment in self.source_stream.segments:
            reached = _further(begun.get(segment.id), consumed.get(segment.id))
            reached = reached or picture.reached(reader, segment)
            left.append(
                lag.unit_view(
                    reached,
                    segment,
                    picture.now_us,
                    unit=f"{group.stream}/{segment.number}",
                    stream=group.stream,
                    markers=picture.markers(reached, segment) if segment.markers else 0,
                    exact=exact,
                )
            )
        note = picture.entries[PIPELINE].get(job_key(group))
        filling = Filling(
            group,
            tuple(unit.floor for unit in left),
            sum(unit.events for unit in left),
            led=picture.held(PIPELINE) is not None,
            up=picture.held(UP) is not None,
            job=None if note is None else _notes.decode_or(group.key, note, None),
            exact=all(unit.exact for unit in left),
            waits=homes.waiting(picture.tx, [group.key]).get(group.key, "") if consumed else "",
        )
        return left, filling

    def members(self, units: Sequence[UnitView]) -> tuple[GroupMember, ...]:
        owned: dict[str, int] = {}
        for unit in units:
            if unit.instance is not None and unit.member is not None:
                count = len(unit.partitions) if self.layout is Layout.SHARES else 1
                owned[unit.member] = owned.get(unit.member, 0) + count
        return tuple(
            self._member(member, len(given), owned.get(member, 0))
            for member, given in self.config.assignment().items()
        )

    def _member(self, member: str, share: int, units: int) -> GroupMember:
        pin = self._pin(member)
        if pin is not None:
            state = "active" if share or units else "stands by"
            why = "" if share else f"the group has only {self.config.max_members} partitions"
            if units < share:
                why = "waits for the members that still finish them, or has not claimed them yet"
            seen = GroupMember(
                member=member, state=state, instance=pin.owner, units=units, share=share, why=why
            )
            return hearing.heard(seen, pin, self.picture.now_us)
        last = self.picture.leases.get(f"pin.{self.group.key}.{member}")
        if last is None:
            why = f"no instance of {member} runs"
            return GroupMember(member=member, state="missing", share=share, why=why)
        why = f"instance {last.owner} was lost at {findings.moment_words(last.expires_us)}"
        return GroupMember(
            member=member,
            state="lost",
            share=share,
            lost_at=findings.moment(last.expires_us),
            why=why,
        )


def _further(read: Reached | None, consumed: Reached | None) -> Reached | None:
    """How far a queue was filled: where a group was at home before, its acks are further."""
    if read is None or consumed is None:
        return read or consumed
    return consumed if consumed.floor > read.floor else read


def _state(member: str | None, wanted: str | None) -> str:
    if member is None:
        return "unowned"
    return "owned" if member == wanted else "moving"


def _findings(
    group: FullName,
    name: str,
    members: Sequence[GroupMember],
    units: Sequence[UnitView],
    behind: GroupLag,
    filling: Filling,
) -> list[Finding]:
    found = []
    waiting = behind.events > 0
    if not members:
        found.append(
            Finding(
                finding="no_members",
                about=name,
                sentence="the group has no members: nobody consumes anything",
                next="add some: headrace group members add",
                needs_person=waiting,
            )
        )
    for member in members:
        if member.state not in ("lost", "missing") or not member.share:
            continue
        idle = [p for unit in units if unit.member == member.member for p in unit.partitions]
        lost = member.state == "lost"
        why = f"{member.member}: {member.why}, and nobody took over" if lost else member.why
        found.append(
            Finding(
                finding=f"member_{member.state}",
                about=name,
                sentence=f"{why}: {partition_words(idle)} "
                f"{'is' if len(idle) == 1 else 'are'} not consumed",
                next=f"start one: headrace group join {group.scope} {group.group} {member.member}",
                needs_person=lost or waiting,
            )
        )
    found += [*hearing.silent(name, members), *_of_filling(name, filling)]
    return [*found, *findings.of_lag(behind)]


def _of_filling(name: str, filling: Filling) -> list[Finding]:
    what, next_step = filling.in_words
    if not what:
        return []
    word = "no_pipeline" if not filling.led else "pipeline_fails"
    word = "pipeline_waits" if filling.led and filling.job is None else word
    return [
        Finding(
            finding=word,
            about=name,
            sentence=what,
            next=next_step.removeprefix("; "),
            needs_person=word != "pipeline_waits",
        )
    ]


def partition_words(partitions: Sequence[int]) -> str:
    """Partitions in words.

    >>> partition_words([0, 1, 2, 5])
    'partitions 0-2, 5'
    """
    return units_text(ranges(partitions)) if partitions else "nothing"


def _without_stream(name: FullName, kind: str, config: GroupConfig) -> GroupView:
    gone = Finding(
        finding="no_stream",
        about=str(name),
        sentence=f"its stream {name.scope!r} does not exist any more",
        next=f"delete the group: headrace group {kind} rm {name.scope} {name.group}",
    )
    return GroupView(
        group=str(name),
        kind=kind,
        stream=name.scope,
        filter=config.filter or None,
        lag=lag.total(str(name), kind, []),
        findings=(gone,),
    )
