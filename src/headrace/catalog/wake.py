"""Notifications: waking those who wait, in this process and in others on the same machine.

``Notifier`` is the part within a process: callbacks by channel.  ``WakeSockets`` carries the
news between processes that share one SQLite file: every waiting process binds a datagram
socket in the catalog's ``wake`` folder, and a committer sends the channels it touched to
each of them.  So that no news is lost when a committer dies between its commit and its datagrams,
the waiting process also compares SQLite's ``data_version`` once a second.

Where the catalog's path is too long for the address of a socket, each process reaches the folder by
a link of its own, in a private temporary folder.

A full socket queue drops datagrams.  The receiver drains its socket until it is empty, and a
full queue means that at least ``BURST`` datagrams are read in one go; it then wakes everybody,
so that no channel is missed.  A committer has a sending socket for each receiver: unread datagrams
of a paused receiver count against the sender's buffer, and would block one socket for all.

The socket is served by a thread, or by the event loop where all who wait are on one: a switch from
a thread to the loop would take longer than the read that follows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.catalog import private
from headrace.catalog.bell import Bell
from headrace.catalog.notifier import Notifier
from headrace.catalog.scratch import Scratch, sweep
from headrace.catalog.transaction import FREQUENT
from headrace.errors import CatalogUnavailableError, ForkedError

if TYPE_CHECKING:
    import asyncio  # slow to load, and nothing for whoever only looks

BURST = 8
"""Fewer than the smallest queue length of a datagram socket (10 on Linux)."""

POLL_S = 1.0
ADDRESS_BYTES = 100
NAME_BYTES = 24
DATAGRAM_BYTES_MAX = 4096
EVERYBODY = b"*"
SCRATCH = "headrace-wake-"
"""Prefix of temporary folders with a link to the sockets of a catalog."""
LINK_BYTES = len(f"/{SCRATCH}12345678/wake")
WANTS_FREQUENT = ".often"
"""Suffix of a marker file: the socket of that name wants frequent channels as well."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    try:
        return sys.modules["asyncio"].get_running_loop()  # type: ignore[no-any-return]
    except RuntimeError:
        return None


def _temporary_folder() -> Path:
    """The system's temporary folder, or ``/tmp`` where its path is too long for sockets."""
    place = Path(tempfile.gettempdir())
    return (
        place
        if len(os.fsencode(place)) + LINK_BYTES + NAME_BYTES <= ADDRESS_BYTES
        else Path("/tmp")
    )


@functools.cache
def _sweep_once() -> None:
    """Remove the folders of programs that were killed."""
    with contextlib.suppress(OSError):  # there is no temporary folder
        sweep(SCRATCH, _temporary_folder())


def _message(channels: Iterable[str]) -> bytes:
    message = "\n".join(channels).encode()
    return EVERYBODY if len(message) > DATAGRAM_BYTES_MAX else message


def _remove(path: str) -> None:
    """Remove a socket and its marker, and nothing else that may stand there."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
            os.unlink(path + WANTS_FREQUENT)


def wake_folder(catalog_folder: Path) -> Path:
    """Where the sockets live."""
    return catalog_folder.resolve() / "wake"


class WakeSockets:
    """The datagram sockets of one catalog folder, seen from one process."""

    def __init__(
        self,
        folder: Path,
        notifier: Notifier,
        others: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._notifier = notifier
        self._others = others
        """Gives another number when others have committed."""
        self._seen_of_others = -1
        self._lock = threading.RLock()
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._receiver: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_loop = contextlib.ExitStack()
        """What ``leave_loop`` has to undo."""
        self._closing = False
        self._sending = threading.Lock()
        self._senders: dict[str, socket.socket] = {}
        self._peers: dict[str, bool] = {}
        """The sockets of other processes, and whether they want frequent channels."""
        self._peers_mtime_ns = -1
        self._path = str(folder)
        self._short: str | None = None
        self._scratch: Scratch | None = None
        self._forked = False

    # -- sending ------------------------------------------------------------------------

    def look(self) -> os.stat_result | None:
        """The folder as it is, for :meth:`send`; None if there is none."""
        try:
            return os.lstat(self._path)
        except OSError:
            return None

    def send(self, channels: Collection[str], about: os.stat_result | None) -> None:
        """Notify every waiting process; called after a commit, or later for frequent channels.

        ``about`` is what :meth:`look` found since the commit.
        """
        with self._sending:
            self._send(channels, about)

    def _send(self, channels: Collection[str], about: os.stat_result | None) -> None:
        peers = self._current_peers(about)
        if not peers:
            return
        everything = _message(channels)
        most = _message(channel for channel in channels if not channel.startswith(FREQUENT))
        try:
            place = self._address()
        except OSError:  # no temporary folder; those who wait look once a second
            return
        for peer, wants_frequent in peers.items():
            message = everything if wants_frequent else most
            if not message:
                continue
            try:
                self._sender(peer).sendto(message, f"{place}/{peer}")
            except (ConnectionRefusedError, FileNotFoundError):
                self._senders.pop(peer).close()
                _remove(f"{self._path}/{peer}")
            except OSError:
                # Mostly a full queue; its reader sees that it was full and wakes everybody.
                continue

    def _address(self) -> str:
        """The folder, by a path that is short enough for sockets."""
        with self._lock:
            if self._short is None and len(os.fsencode(self._path)) + NAME_BYTES <= ADDRESS_BYTES:
                self._short = self._path
            elif self._short is None:
                _sweep_once()
                self._scratch = Scratch(SCRATCH, _temporary_folder())
                os.symlink(self._path, self._scratch.path / "wake")
                self._short = str(self._scratch.path / "wake")
            return self._short

    def _sender(self, peer: str) -> socket.socket:
        sender = self._senders.get(peer)
        if sender is None:
            sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sender.setblocking(False)
            self._senders[peer] = sender
        return sender

    def _current_peers(self, about: os.stat_result | None) -> dict[str, bool]:
        if about is None:
            return {}
        mtime_ns = about.st_mtime_ns
        if mtime_ns == self._peers_mtime_ns:
            return self._peers
        try:
            found = set(os.listdir(self._path)) if stat.S_ISDIR(about.st_mode) else set()
        except OSError:
            return {}
        peers = {
            name: name + WANTS_FREQUENT in found
            for name in found
            if not name.startswith((self._name, ".")) and not name.endswith(WANTS_FREQUENT)
        }
        for gone in self._senders.keys() - peers.keys():
            self._senders.pop(gone).close()
        # A folder's mtime is coarse: a listing is cached only once the mtime is old enough that
        # any later change must alter it.
        if time.time_ns() - mtime_ns > 100_000_000:
            self._peers, self._peers_mtime_ns = peers, mtime_ns
        return peers

    # -- receiving ----------------------------------------------------------------------

    def listen(self) -> None:
        """Start to receive, once somebody in this process waits."""
        with self._lock:
            if self._forked:
                raise ForkedError
            if self._receiver is not None or self._closing:
                return
            try:
                receiver = self._bind()
            except OSError as error:
                raise CatalogUnavailableError(f"{self._path}: no news: {error}") from error
            self._receiver = receiver
            _sweep_once()
            watching = Bell()
            self._start(receiver, watching)
        # From here on data_version is watched too, so even a committer that dies is noticed.
        watching.wait(POLL_S)

    def _bind(self) -> socket.socket:
        private.make_folder(self._folder, inside=True)
        if self._folder.is_symlink():
            raise OSError("a link leads elsewhere; remove it")
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiver.setblocking(False)
            receiver.bind(f"{self._address()}/{self._name}")
            os.chmod(self._folder / self._name, private.mode_in(self._folder))
        except BaseException:
            receiver.close()
            raise
        return receiver

    def want_frequent(self) -> None:
        """From now on receive frequent channels, too."""
        with self._lock:
            if self._receiver is not None:
                with contextlib.suppress(FileNotFoundError):  # then no news comes by it anyway
                    (self._folder / f"{self._name}{WANTS_FREQUENT}").touch(0o600)

    def _start(self, receiver: socket.socket, watching: Bell) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            if _running_loop() is loop:
                self._begin(loop, receiver, watching)
            else:
                loop.call_soon_threadsafe(self._begin, loop, receiver, watching)
            return
        self._thread = threading.Thread(
            target=self._run, args=(receiver, watching), name="headrace-wake", daemon=True
        )
        self._thread.start()

    # -- on an event loop ---------------------------------------------------------------

    def serve_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have this loop receive, once somebody waits; it has to run until ``leave_loop``."""
        with self._lock:
            self._loop = loop

    def leave_loop(self) -> None:
        """Receive no more; called on the loop."""
        with self._lock:
            self._loop = None
            self._closing = True
        self._on_loop.close()

    def _begin(
        self, loop: asyncio.AbstractEventLoop, receiver: socket.socket, watching: Bell
    ) -> None:
        if not self._closing:
            self._changed()
            loop.add_reader(receiver, self._drain, receiver)
            self._on_loop.callback(loop.remove_reader, receiver)
            loop.call_later(POLL_S, self._check, loop)
        watching.ring()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._closing:
            if self._changed():
                self._notifier.everybody()
            loop.call_later(POLL_S, self._check, loop)

    def _changed(self) -> bool:
        """Whether others have committed since the last call."""
        before, self._seen_of_others = self._seen_of_others, self._others()
        return before != self._seen_of_others

    # -- on a thread --------------------------------------------------------------------

    def _run(self, receiver: socket.socket, watching: Bell) -> None:
        poller = select.poll()
        poller.register(receiver, select.POLLIN)
        self._changed()
        watching.ring()
        next_check = time.monotonic() + POLL_S
        while not self._closing:
            poller.poll(max(0.0, next_check - time.monotonic()) * 1000)
            self._drain(receiver)
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + POLL_S
                if self._changed():
                    self._notifier.everybody()

    def _drain(self, receiver: socket.socket) -> None:
        """Read all that has come, then pass it on."""
        channels: dict[str, None] = {}  # in the order of the news
        count = 0
        while True:
            try:
                message = receiver.recv(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                break
            count += BURST if message == EVERYBODY else 1
            channels.update(dict.fromkeys(message.decode().split("\n")))
        if count >= BURST:
            self._notifier.everybody()
        elif channels:
            self._notifier.news(channels)

    def forked(self) -> None:
        """In a forked child: close its copies of the sockets; those in the folder stay.

        The event loop's selector is left alone: the child shares its epoll set with the parent.
        """
        self._lock, self._sending = threading.RLock(), threading.Lock()
        self._forked = self._closing = True
        for inherited in (self._receiver, *self._senders.values()):
            if inherited is not None:
                inherited.close()
        self._receiver = self._loop = None
        self._senders.clear()
        if self._scratch is not None:
            self._scratch.forked()
            self._scratch = None

    def close(self) -> None:
        with self._lock:
            self._closing = True
            receiver, thread = self._receiver, self._thread
            self._receiver = None
        if receiver is not None:
            if thread is not None:
                with (
                    contextlib.suppress(OSError),
                    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker,
                ):
                    waker.sendto(b"", f"{self._address()}/{self._name}")
                thread.join(timeout=2 * POLL_S)
            receiver.close()
            _remove(f"{self._path}/{self._name}")
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()
        if self._scratch is not None:
            self._scratch.close()
