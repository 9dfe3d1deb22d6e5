"""Parcels: what two peers say to each other through the catalog, where one cannot dial the other.

Each side has one parcel to the other, which it writes over.  A parcel holds every frame that the
other has not said to have read, and the number of the last frame of the other that was read here.
So a parcel that is written over before it was read loses nothing, and one that is read twice
changes nothing.  Frames that are not read for a while are left out: the protocol above takes them
for lost, and has sent them again or given up by then.
"""

from __future__ import annotations

from collections import deque

import msgspec

PARCEL_BYTES_MAX = 4 * 1024 * 1024
KEPT_MS = 5000
"""How long a frame that nobody reads is kept."""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """Messages as they would go over a connection."""

    to_leaders: bool
    """Whether borrowers speak to leaders, or the other way round."""
    data: bytes


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """What one peer last wrote to another."""

    first: int
    """The number of the first frame; the others follow it."""
    frames: tuple[Frame, ...]
    read: int
    """The last frame of the other that was read; 0: none."""
    note: str = ""
    """Why it does not dial, in words; empty if it would have to be dialled itself."""


class Correspondence:
    """The parcels between this peer and one other."""

    def __init__(self, now_ms: int) -> None:
        self.note = ""
        """Why the other says that it does not dial."""
        # Above all numbers of an earlier correspondence with the same peer.
        self._number = now_ms * 1000
        self._read = 0
        self._unread: deque[tuple[int, int, Frame]] = deque()
        """(number, time, frame) of what the other has not read."""
        self._bytes = 0

    def put(self, frame: Frame, now_ms: int) -> None:
        """Add a frame to the parcel; the oldest give way to it."""
        self._number += 1
        self._unread.append((self._number, now_ms, frame))
        self._bytes += len(frame.data)
        while self._unread and (
            self._bytes > PARCEL_BYTES_MAX or now_ms - self._unread[0][1] >= KEPT_MS
        ):
            self._forget()

    def parcel(self, note: str = "") -> Parcel:
        """What to write now."""
        first = self._unread[0][0] if self._unread else self._number + 1
        return Parcel(first, tuple(frame for _, _, frame in self._unread), self._read, note)

    def take(self, parcel: Parcel) -> list[Frame]:
        """Read a parcel of the other; returns the frames that are new."""
        while self._unread and self._unread[0][0] <= parcel.read:
            self._forget()
        self.note = parcel.note
        new = list(parcel.frames[max(0, self._read + 1 - parcel.first) :])
        self._read = max(self._read, parcel.first + len(parcel.frames) - 1)
        return new

    def _forget(self) -> None:
        self._bytes -= len(self._unread.popleft()[2].data)
