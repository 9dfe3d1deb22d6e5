"""Messages between peers through the catalog, for those that cannot dial each other.

A peer has a bucket for the parcels to it, with one entry for each other peer that writes to it.
One write at a time takes along all that has come meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from headrace.catalog import Tx, entries
from headrace.errors import FrameError, HeadraceError
from headrace.groups.shared.core.messages import FromBorrower, FromLeader, Message
from headrace.groups.shared.core.parcels import PARCEL_BYTES_MAX, Correspondence, Frame, Parcel
from headrace.groups.shared.runtime import directory, frames
from headrace.host import Host, Tasks

GATHER_S = 0.01
"""How long a parcel waits for more: writing it costs more than what is in it."""
FRAME_MESSAGES = 500
CORRESPONDENTS_MAX = 10_000

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)

_log = logging.getLogger(__name__)


class RelayOutbox:
    """Where messages to the borrowers of a peer go that has written here."""

    closed = False

    def __init__(self, relay: Relay, peer: str) -> None:
        self.peer = peer
        self._relay = relay

    @property
    def note(self) -> str:
        """Why the peer does not dial, in words."""
        return self._relay.note(self.peer)

    def put(self, message: FromLeader) -> bool:
        """Write a message."""
        self._relay.put(self.peer, message, to_leaders=False)
        return True


class Relay:
    """The parcels of one peer."""

    def __init__(
        self,
        host: Host,
        name: str,
        tasks: Tasks,
        why: Callable[[str], str],
        from_borrowers: Callable[[list[FromBorrower], RelayOutbox], None],
        from_leaders: Callable[[list[FromLeader]], None],
        read_one: Callable[[str], None],
    ) -> None:
        """`why` tells why a peer is not dialled; `read_one` is called with who has written."""
        self._host = host
        self._name = name
        self._tasks = tasks
        self._why = why
        self._from_borrowers = from_borrowers
        self._from_leaders = from_leaders
        self._read_one = read_one
        self._known: dict[str, Correspondence] = {}
        self._outboxes: dict[str, RelayOutbox] = {}
        self._due: dict[str, dict[bool, list[Message]]] = {}
        """Messages that are in no parcel yet, by peer and direction."""
        self._revision = 0
        self._writing = self._reading = self._news = self._closed = False
        self._stop_listening: Callable[[], None] | None = None

    async def open(self) -> None:
        """Hear of parcels, before anybody knows where to write."""
        channel = entries.channel(directory.parcels_to(self._name))
        self._stop_listening = await self._host.listen(channel, self._look)

    def close(self) -> None:
        """Neither write nor read any more."""
        self._closed = True
        if self._stop_listening is not None:
            self._stop_listening()

    @property
    def unsent(self) -> bool:
        """Whether something is still to be written."""
        return self._writing

    def note(self, peer: str) -> str:
        """Why a peer that writes does not dial."""
        found = self._known.get(peer)
        return "" if found is None else found.note

    # --- writing ---

    def put(self, peer: str, message: Message, *, to_leaders: bool) -> None:
        """Write a message to a peer, soon."""
        if self._closed:
            return
        self._due.setdefault(peer, {}).setdefault(to_leaders, []).append(message)
        if not self._writing:
            self._writing = True
            self._tasks.spawn(self._write())

    async def _write(self) -> None:
        try:
            while self._due and not self._closed:
                await self._host.sleep(GATHER_S)
                due, self._due = self._due, {}
                parcels = {peer: self._parcel(peer, messages) for peer, messages in due.items()}
                locks = [entries.lock(directory.parcels_to(peer)) for peer in sorted(parcels)]

                def write(tx: Tx, parcels: dict[str, bytes] = parcels) -> None:
                    for peer in sorted(parcels):
                        directory.write_to(tx, peer, self._name, parcels[peer])

                try:
                    await self._host.in_transaction(write, locks, sync=False)
                except HeadraceError as error:
                    # What is in it is repeated with the next one.
                    _log.debug("parcels are not written: %s", error)
        finally:
            self._writing = False

    def _parcel(self, peer: str, due: dict[bool, list[Message]]) -> bytes:
        known, now_ms = self._correspondence(peer), self._host.now_ms()
        for to_leaders, messages in due.items():
            for begin in range(0, len(messages), FRAME_MESSAGES):
                for data in frames.encode_parts(messages[begin : begin + FRAME_MESSAGES]):
                    if len(data) <= PARCEL_BYTES_MAX:
                        known.put(Frame(to_leaders, data), now_ms)
        return _encoder.encode(known.parcel(self._why(peer)))

    def _correspondence(self, peer: str) -> Correspondence:
        found = self._known.get(peer)
        if found is None:
            if len(self._known) >= CORRESPONDENTS_MAX:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self._outboxes.pop(oldest, None)
            found = self._known[peer] = Correspondence(self._host.now_ms())
        return found

    # --- reading ---

    def _look(self) -> None:
        """Somebody may have written."""
        self._news = True
        if not self._reading and not self._closed:
            self._reading = True
            self._tasks.spawn(self._read())

    async def _read(self) -> None:
        bucket = directory.parcels_to(self._name)
        try:
            while self._news and not self._closed:
                self._news = False
                found = await self._host.in_thread(
                    self._host.log.catalog.read,
                    lambda tx: entries.changes(tx, bucket, self._revision),
                    snapshot=True,
                )
                self._revision = found.revision
                for entry in found.entries:
                    if entry.value is not None:
                        self._take(entry.key, entry.value)
        except HeadraceError as error:
            _log.debug("parcels cannot be read: %s", error)
        finally:
            self._reading = False

    def _take(self, peer: str, value: bytes) -> None:
        try:
            new = self._correspondence(peer).take(_decoder.decode(value))
            for frame in new:
                if frame.to_leaders:
                    outbox = self._outboxes.setdefault(peer, RelayOutbox(self, peer))
                    self._from_borrowers(frames.decode_from_borrowers(frame.data), outbox)
                else:
                    self._from_leaders(frames.decode_from_leaders(frame.data))
        except (msgspec.DecodeError, FrameError) as error:
            _log.warning("a parcel of %s makes no sense: %s", peer, error)
        else:
            self._read_one(peer)
