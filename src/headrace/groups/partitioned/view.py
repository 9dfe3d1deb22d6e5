"""Partitioned groups as everybody sees them: members, partitions, lag and what is wanting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.catalog.overview import Reached
from headrace.catalog.records import Records
from headrace.catalog.streams import Stream
from headrace.groups import findings, hearing, homes, lag
from headrace.groups.kinds import Basis, KindOfGroups
from headrace.groups.names import PARTITIONED, FullName
from headrace.groups.partitioned.core.config import GroupConfig
from headrace.groups.partitioned.filling import PIPELINE, UP, Filling, JobNote, job_key
from headrace.groups.partitioned.findings import findings_of
from headrace.groups.partitioned.layout import Layout, layout_of
from headrace.groups.partitioned.names import ELASTIC_BUCKET, STATIC_BUCKET
from headrace.groups.partitioned.plan import GroupPlan, config_of, pins_of, plan_of
from headrace.groups.picture import CatalogReach, Picture, UnitFrame
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
        members = config_of(group, entries).assignment()
        return CatalogReach(
            readers=[
                *(group.key, group.partition_job, group.consumed),
                *(group.share(each) for each in members),
            ],
            streams=[group.stream, group.work_queue],
            leases=[group.pin("x")[:-1], PIPELINE, UP],
        )

    def view(self, name: FullName, picture: Picture) -> GroupView:
        plan = plan_of(name, picture)
        source = picture.streams.get(plan.group.stream)
        if source is None:
            return _without_stream(name, plan.kind, plan.config)
        look = _Look(picture, plan, source)
        units, behind, filling = look.behind()
        members = look.members(units)
        return GroupView(
            group=plan.text,
            kind=plan.kind,
            stream=plan.group.stream,
            filter=plan.config.filter or None,
            members=members,
            members_active=sum(member.instance is not None for member in members),
            members_wanted=sum(member.share > 0 for member in members),
            lag=behind,
            units=tuple(units),
            findings=tuple(findings_of(name, plan.text, members, units, behind, filling)),
        )

    def basis(self, name: FullName, picture: Picture) -> Basis | None:
        plan = plan_of(name, picture)
        group, begun, known = plan.group, picture.progress, picture.leases
        if plan.queue and begun.get(group.consumed):
            return None  # it is replicated, and where its home is stands elsewhere
        return Basis(
            (
                plan,
                picture.streams.get(group.stream),
                picture.streams.get(plan.queue) if plan.queue else None,
                picture.entries[PIPELINE].get(plan.job) if plan.queue else None,
                picture.claims.get(group.key),
                *[begun.get(reader) for reader in plan.readers],
            ),
            (*plan.readers, group.consumed) if plan.queue else plan.readers,
            (
                *pins_of(picture, plan).values(),
                known.get(PIPELINE) if plan.queue else None,
                known.get(UP) if plan.queue else None,
            ),
        )

    def lag(self, name: FullName, picture: Picture) -> GroupLag:
        plan = plan_of(name, picture)
        source = picture.streams.get(plan.group.stream)
        if source is None:
            return lag.total(plan.text, plan.kind, [])
        units, behind, _ = _Look(picture, plan, source).behind()
        return msgspec.structs.replace(behind, units=tuple(units))


KIND = Partitioned()


class _Look:
    """One group in a picture."""

    def __init__(self, picture: Picture, plan: GroupPlan, source: Stream) -> None:
        self.picture = picture
        self.plan = plan
        self.group = plan.group
        self.config = plan.config
        self.source_stream = source
        self.layout = layout_of(plan.config, source.config)
        self.read = picture.streams.get(plan.queue) if plan.queue else source
        self.claims = picture.claims.get(plan.group.key, {})
        self.last_pins = pins_of(picture, plan)
        self.pins = {
            member: pin for member, pin in self.last_pins.items() if pin.expires_us > picture.now_us
        }
        self.owners: dict[str, tuple[str | None, str | None]] = {}

    def behind(self) -> tuple[list[UnitView], GroupLag, Filling]:
        """The units, how far the group is behind, and who fills its work queue."""
        units, counted = self._units()
        left, filling = self._source()
        plan = self.plan
        return (
            units,
            lag.total(plan.text, plan.kind, counted, left, finding=filling.finding),
            filling,
        )

    def _units(self) -> tuple[list[UnitView], list[UnitView]]:
        """The units, and what counts of them: members that read shares miss the same events."""
        if self.read is None:
            return [], []
        if self.layout is Layout.SHARES:
            return self._shares(self.read)
        exact = bool(self.plan.queue) or self.picture.exact((self.config.filter,), self.read)
        pinned = {member: (pin.owner, pin.token) for member, pin in self.pins.items()}
        basis = self.plan, self.read, self.claims, pinned
        frames = self.picture.memory.made(
            ("units", self.plan.text), basis, lambda _: self._frames(exact)
        )
        found = self.picture.units(frames, self.group.key)
        return found, found

    def _frames(self, exact: bool) -> list[UnitFrame]:
        """The units but for what was acked of them."""
        assert self.read is not None
        found = []
        for segment in self.read.segments:
            number = str(segment.number)
            member, instance, token = self._owner(number)
            wanted = self.plan.given.get(segment.number)
            frame = UnitView(
                unit=number,
                stream=self.read.name,
                member=member or wanted,
                instance=instance,
                token=token,
                state=_state(member, wanted),
                partitions=(segment.number,),
                exact=exact,
            )
            found.append((segment, frame))
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
        pin = self.pins.get(member)
        if pin is None or pin.owner != instance or str(pin.token) != pin_token:
            return None, None
        return member, instance

    def _shares(self, read: Stream) -> tuple[list[UnitView], list[UnitView]]:
        rest = self.config.filter or ">"
        found: list[UnitView] = []
        by_segment: dict[int, list[tuple[UnitView, lag.OffsetRanges]]] = {}
        owners = [(m, owned) for m, owned in self.config.assignment().items() if owned]
        for index, (wanted, owned) in enumerate(owners):
            share, parts = self.group.share(wanted), []
            member, instance, token = self._owner(str(index))
            exact = self.picture.exact(tuple(f"{p}.{rest}" for p in owned), read)
            frame = UnitView(unit=wanted, stream=read.name, exact=exact)
            for segment in read.segments:
                reached = self.picture.reached(share, segment)
                part = lag.unit_view(
                    frame,
                    reached,
                    segment,
                    self.picture.now_us,
                    self.picture.markers(reached, segment),
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
        group, picture, source = self.group, self.picture, self.source_stream
        if not self.plan.queue:
            return [], Filling(group, (), 0, led=True, up=False, job=None)
        exact = picture.exact((self.config.filter,), source)
        frames = picture.memory.made(
            ("source", source.name, exact), source, lambda _: _source_frames(source, exact)
        )
        consumed = picture.progress.get(group.consumed)
        begun = picture.progress.get(group.partition_job, {})
        job = group.partition_job
        left = picture.units(frames, job, _furthest(begun, consumed) if consumed else begun)
        note = picture.entries[PIPELINE].get(self.plan.job)
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
        pin = self.pins.get(member)
        if pin is not None:
            state = "active" if share or units else "stands by"
            why = "" if share else f"the group has only {self.config.max_members} partitions"
            if units < share:
                why = "waits for the members that still finish them, or has not claimed them yet"
            seen = GroupMember(
                member=member, state=state, instance=pin.owner, units=units, share=share, why=why
            )
            return hearing.heard(seen, pin, self.picture.now_us)
        last = self.last_pins.get(member)
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


def _source_frames(source: Stream, exact: bool) -> list[UnitFrame]:
    name = source.name
    return [
        (segment, UnitView(unit=f"{name}/{segment.number}", stream=name, exact=exact))
        for segment in source.segments
    ]


def _furthest(read: Mapping[int, Reached], consumed: Mapping[int, Reached]) -> dict[int, Reached]:
    """How far a queue was filled: where a group was at home before, its acks are further."""
    further = {
        at: reached
        for at, reached in consumed.items()
        if (filled := read.get(at)) is None or reached.floor > filled.floor
    }
    return {**read, **further}


def _state(member: str | None, wanted: str | None) -> str:
    if member is None:
        return "unowned"
    return "owned" if member == wanted else "moving"


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
