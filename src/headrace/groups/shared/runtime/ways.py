"""The two ways to another peer: a connection, and parcels through the catalog."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.groups.shared.core.messages import FromBorrower
from headrace.groups.shared.core.reach import Reachability, Way
from headrace.groups.shared.runtime.directory import Address
from headrace.groups.shared.runtime.relay import Relay
from headrace.net import Target

if TYPE_CHECKING:
    from headrace.groups.shared.runtime.peer import LocalPeer

TOLD_MAX = 1000

_log = logging.getLogger(__name__)


class Ways:
    """Sends what borrowers here say to leaders elsewhere, one way or the other."""

    def __init__(self, peer: LocalPeer) -> None:
        self._peer = peer
        self.own: Address | None = None
        """Where others dial this process."""
        peer.peers.unreached = self._unreached
        self._reach = Reachability()
        self._told: dict[str, str] = {}
        """What was said about peers that do not dial, so that it is said once."""
        self.relay = Relay(
            peer.host,
            peer.name,
            peer.tasks,
            self._reach.why,
            peer.from_borrowers,
            peer.mail.deliver_soon,
            self._read,
        )

    def send(self, peer: str, message: FromBorrower) -> None:
        """Send a message to a leader elsewhere."""
        way = self._reach.way(peer, self._peer.now_ms)
        if way is not Way.DIAL and peer in self._peer.peers.connections:
            way = Way.DIAL
            if self._reach.connected(peer):
                _log.info("%s can be dialled again", peer)
        if way is not Way.WRITE:
            self._peer.peers.send(peer, message)
        if way is not Way.DIAL:
            self.relay.put(peer, message, to_leaders=True)
            self._complain(peer)

    def _unreached(self, peer: str, target: Target, reason: str, took_s: float) -> None:
        """A peer could not be dialled."""
        now_ms, own = self._peer.now_ms, self.own
        here = self._peer.name if own is None else f"{own.peer} at {own.host}:{own.port}"
        why = f"{here} cannot reach {target.host}:{target.port}: {reason}"
        self._reach.failed(peer, why, now_ms - round(took_s * 1000), now_ms)

    def _read(self, peer: str) -> None:
        """A peer has written."""
        self._reach.heard(peer)
        self._complain(peer)
        note = self.relay.note(peer)
        if note and self._peer.leaders and self._told.get(peer) != note:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told[peer] = note
            _log.warning(
                "%s takes part through the catalog, which is slower: %s; give this process an "
                "address that others reach: --listen, --advertise",
                peer,
                note,
            )

    def _complain(self, peer: str) -> None:
        found = self._reach.complaint(peer, self._peer.now_ms)
        if found is None:
            return
        meanwhile = (
            "messages go through the catalog, which is slower"
            if found.heard
            else "it does not answer through the catalog either"
        )
        _log.warning(
            "a leader cannot be dialled, %s: %s; %s. Give it an address that others reach: "
            "--listen, --advertise",
            peer,
            found.why,
            meanwhile,
        )
