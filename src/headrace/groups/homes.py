"""Replicated groups: whether the members in this region may consume, or wait, and why.

A replicated group is consumed in every region, or has a *home* and members elsewhere wait.  It also
waits where its progress has not arrived yet: a group begins here at its exact place or not at all.
The record is an entry in the catalog, so members hear of a change as they hear of a new config.

A record that says "at home here" may be old: a region that was down cannot know whether another one
took its groups over meanwhile.  So a program that consumes such a group draws a number first
(:class:`HomeProof`), and begins when the agent of the region has asked the other regions *after*
that.  Numbers, not times: no clock is trusted, and an idle region writes nothing.  A program that
runs need not ask again: what happens to its region while it lives, its agent tells it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.catalog import Query, Tx, entries, replicas, schema
from headrace.errors import GroupUpdateError, UnreadableRecordError

if TYPE_CHECKING:
    from headrace.host import Host

GROUPS_BUCKET = "region-groups"
PROOF_BUCKET = "region-homes"
PROOF_KEY = "asked"
ORIGIN = "origin"
SNAPSHOT = "snapshot"
MODES = (ORIGIN, SNAPSHOT)

T = TypeVar("T")

_log = logging.getLogger(__name__)


class HomeStamp(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which of two homes counts: the later one, and of two at once the one of the later name."""

    counter: int = 0
    region: str = ""


class Handing(msgspec.Struct, frozen=True):
    """A group that is on its way to another region."""

    source: str
    drained: bool = False
    """Whether everything that its members had acked there is in its cursors."""


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A replicated group, as one region knows it."""

    key: str
    """As the kind of group keeps it: ``orders.billing``, ``audit:orders.>``."""
    family: str
    """``static``, ``shared`` or ``elastic``."""
    streams: tuple[str, ...]
    """The linked streams whose progress is exchanged."""
    config: bytes
    """What the group is made of in a region that does not have it."""
    home: str | None = None
    stamp: HomeStamp = HomeStamp()
    handing: Handing | None = None
    eager: bool = False
    """Whether acks count elsewhere before the events that were published by then arrived."""
    ready: bool = True
    """Whether its progress has arrived here; of one that was deleted, whether it is gone here."""
    deleted: bool = False
    """Kept after a deletion, so that it reaches the other regions."""
    adopted: bool = False
    """Whether its progress replaces what a group of this name has in other regions."""
    life: HomeStamp = HomeStamp()
    """Since when the group is there; what was acked before it does not count."""
    mode: str = ORIGIN
    """How its progress is exchanged: by ``origin``, event by event, or by ``snapshot``."""

    def waits(self, region: str) -> str:
        """Why members in a region wait; nothing if they may consume."""
        if not self.ready:
            return "its progress has not arrived from the other regions yet"
        if self.home is not None and self.home != region:
            return f"the group is at home in {self.home}"
        if self.handing is not None and self.handing.source != region:
            return f"it is on its way here from {self.handing.source}"
        return ""


class HomeProof(msgspec.Struct, frozen=True):
    """How far a region has made sure, by asking the others, of what is at home in it."""

    asked: int = 0
    """How many programs have drawn a number; the last one has this."""
    answered: int = 0
    """Up to this number, the other regions were asked after it was drawn."""
    silent: tuple[str, ...] = ()
    """Regions that could not be asked for the next ones."""

    def draw(self) -> HomeProof:
        """A program begins; its number is ``asked`` afterwards."""
        return msgspec.structs.replace(self, asked=self.asked + 1)

    def waits(self, number: int) -> str:
        """Why a program with a number may not begin with what is at home here; or nothing."""
        if number <= self.answered:
            return ""
        if self.silent:
            return (
                f"this region was down, and whether the group is still at home here cannot be "
                f"asked of {', '.join(self.silent)}; it begins when they answer, or when they are "
                f"given up with: headrace region fail-over --lost {self.silent[0]}"
            )
        return (
            "the agent of this region has not asked the other regions yet whether the group is "
            "still at home here; if none runs, start it with: headrace region run"
        )


# Made here, since the first use of a type by msgspec is not safe in several threads at once.
_group_decoder = msgspec.msgpack.Decoder(GroupRecord)
_proof_decoder = msgspec.msgpack.Decoder(HomeProof)


def this_region(tx: Tx) -> str | None:
    """The name of the region that a catalog is."""
    return schema.get_setting(tx, "region")


def asking(key: str) -> Query:
    """The query of :func:`waits_here`."""
    return entries.asking(GROUPS_BUCKET, key)


def replicated(tx: Tx, key: str) -> GroupRecord | None:
    """A group as this region knows it; None if it is in this region alone, or gone."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return None
    found = decode_group(key, entry.value)
    return None if found.deleted else found


def waits_here(tx: Tx, key: str) -> str:
    """Why the members of a group wait in this region; nothing if they may consume."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return ""
    return decode_group(key, entry.value).waits(this_region(tx) or "")


def waiting(tx: Tx, keys: Iterable[str]) -> dict[str, str]:
    """Those of some groups whose members wait in this region, and why.

    A record that cannot be read tells nothing; whoever looks at that group alone hears of it.
    """
    found = {}
    for key in keys:
        with suppress(UnreadableRecordError):
            if why := waits_here(tx, key):
                found[key] = why
    return found


def asking_proof() -> Query:
    """The query of :func:`proof`."""
    return entries.asking(PROOF_BUCKET, PROOF_KEY)


def proof(tx: Tx) -> HomeProof:
    """How far this region has asked the others."""
    entry = entries.get(tx, PROOF_BUCKET, PROOF_KEY)
    if entry is None or entry.value is None:
        return HomeProof()
    try:
        return _proof_decoder.decode(entry.value)
    except msgspec.MsgspecError as error:
        raise UnreadableRecordError(
            f"what this region asked of the others cannot be read ({error}); restore the catalog "
            "from a backup",
            PROOF_KEY,
        ) from None


def put_proof(tx: Tx, proof: HomeProof) -> None:
    """Store it; holds the lock of its bucket."""
    entries.put(tx, PROOF_BUCKET, PROOF_KEY, msgspec.msgpack.encode(proof))


class HomeStanding(msgspec.Struct, frozen=True):
    """Whether one program may consume a group in this region now."""

    waits: str = ""
    """Why not; nothing if it may."""
    unproven: bool = False
    """Whether it waits because other regions have to be asked first."""
    draws: bool = False
    """Whether it has to draw a number: the group has a home, here or elsewhere."""


def standing(tx: Tx, key: str, number: int | None) -> HomeStanding:
    """How a program with this number stands to a group."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return HomeStanding()
    found = decode_group(key, entry.value)
    waits = found.waits(this_region(tx) or "")
    if found.home is None or found.deleted:
        return HomeStanding(waits)
    if number is None:
        return HomeStanding(waits or HomeProof().waits(1), draws=True)
    if waits:
        return HomeStanding(waits)
    waits = proof(tx).waits(number)
    return HomeStanding(waits, unproven=bool(waits))


class HomeAsking:
    """The number of one program; see the module's text."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._number: int | None = None
        import asyncio  # looks at groups do without it

        self._drawing = asyncio.Lock()
        self._consumed: set[str] = set()
        self._told: dict[str, str] = {}
        self.looking: list[str] = []
        """The groups that are looked at now: what they see may be older than news that come now."""

    async def look(
        self,
        key: str,
        read: Callable[[Tx, int | None], tuple[HomeStanding, T]],
        *,
        consumed: bool = False,
    ) -> T:
        """Read with the program's number, after drawing one if the group asks for it.

        ``consumed``: the program consumes the group already, which was given a home meanwhile.
        """
        self.looking.append(key)
        try:
            return await self._look(key, read, consumed)
        finally:
            self.looking.remove(key)

    async def _look(
        self, key: str, read: Callable[[Tx, int | None], tuple[HomeStanding, T]], consumed: bool
    ) -> T:
        def run(tx: Tx) -> tuple[HomeStanding, T]:
            return read(tx, self.number(key))

        catalog = self._host.log.catalog
        stands, found = await self._host.in_thread(catalog.read, run)
        if stands.draws:
            if consumed:
                self._consumed.add(key)
            else:
                await self._draw()
            stands, found = await self._host.in_thread(catalog.read, run)
        if stands.unproven and stands.waits != self._told.get(key):
            _log.warning("group %s waits: %s", key, stands.waits)
            self._told[key] = stands.waits
        elif not stands.unproven:
            self._told.pop(key, None)
        return found

    def number(self, key: str) -> int | None:
        """Its number for a group; None if it has drawn none."""
        return 0 if key in self._consumed else self._number

    async def _draw(self) -> None:
        def run(tx: Tx) -> int:
            drawn = proof(tx).draw()
            put_proof(tx, drawn)
            return drawn.asked

        async with self._drawing:
            if self._number is None:
                self._number = await self._host.in_transaction(run, (entries.lock(PROOF_BUCKET),))


def asking_of(host: Host) -> HomeAsking:
    """The number of a program, whatever it consumes."""
    found: HomeAsking | None = host.parts.get(HomeAsking)
    if found is None:
        found = host.parts[HomeAsking] = HomeAsking(host)
    return found


def configured(tx: Tx, key: str, config: bytes) -> None:
    """A group was changed: it is in the other regions as well; holds the bucket's lock.

    It is changed where it is at home, so that of two changes one comes after the other.
    """
    found, region = replicated(tx, key), this_region(tx) or ""
    if found is None:
        return
    if why := found.waits(region):
        raise GroupUpdateError(f"group {key!r} is changed where it is at home: {why}")
    stamp = HomeStamp(found.stamp.counter + 1, region)
    put_group(tx, msgspec.structs.replace(found, config=config, stamp=stamp))
    tx.notify(replicas.CHANNEL)


def deleted_here(tx: Tx, key: str) -> None:
    """A group was deleted: it goes in the other regions as well; holds the bucket's lock."""
    entry = entries.get(tx, GROUPS_BUCKET, key)
    if entry is None or entry.value is None:
        return
    found = decode_group(key, entry.value)
    if not found.deleted:
        stamp = HomeStamp(found.stamp.counter + 1, this_region(tx) or "")
        put_group(
            tx,
            msgspec.structs.replace(
                found, deleted=True, ready=True, stamp=stamp, handing=None, home=None
            ),
        )
        tx.notify(replicas.CHANNEL)


def put_group(tx: Tx, record: GroupRecord) -> None:
    """Store a group; holds the bucket's lock."""
    entries.put(tx, GROUPS_BUCKET, record.key, msgspec.msgpack.encode(record))


def decode_group(key: str, data: bytes) -> GroupRecord:
    """A group as it was stored; raises an error that says how to be rid of it."""
    try:
        found = _group_decoder.decode(data)
        if found.key == key:
            return found
        why = f"it is that of {found.key!r}"
    except (msgspec.MsgspecError, UnicodeError) as error:
        why = str(error)
    raise UnreadableRecordError(
        f"the record of replicated group {key!r} cannot be read ({why}); restore the catalog from "
        f"a backup, or replicate it no longer: headrace region group disable {_shown(key)}",
        key,
    ) from None


def _shown(key: str) -> str:
    """A group as commands take it.

    >>> _shown("orders.billing"), _shown("audit:orders.>")
    ('orders/billing', "'$share/audit/orders.>'")
    """
    group, shared, filter = key.partition(":")
    return f"'$share/{group}/{filter}'" if shared else key.replace(".", "/")
