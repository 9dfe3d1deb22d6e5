"""Simulated connections between programs, with the faults that TCP lets through to a WebSocket.

Frames of a connection arrive in order and once, or the connection ends.  What goes wrong: frames
are late, held back for seconds, or wait while a partition lasts; a connection is cut, what was
under way is lost, and each side notices in its own time; dialling takes a while, is refused, or is
never answered.  Within a connection no frame is lost, repeated or overtaken.  From the frame on,
the parts of ``headrace.net`` are the real ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from picows import WSError, WSListener, WSMsgType

from headrace.net.intake import PAUSE_S
from headrace.net.sockets import Sockets
from headrace.sim.faults import Fault

if TYPE_CHECKING:
    from headrace.sim.programs.program import Program
    from headrace.sim.world import World

CUT_PROBABILITY = 0.03
HELD_PROBABILITY = 0.02
HELD_MS_MAX = 4000
NOTICED_MS_MAX = 400
"""How long after a cut a side may take to notice it."""
RESET_PROBABILITY = 0.05
LOOK_AGAIN_MS = 50
FIRST_PORT = 10_000


class SimFrame:
    """A frame as a link is handed it."""

    fin = True

    def __init__(self, msg_type: WSMsgType, payload: bytes) -> None:
        self.msg_type = msg_type
        self._payload = payload

    @property
    def payload_size(self) -> int:
        return len(self._payload)

    def get_payload_as_memoryview(self) -> memoryview:
        return memoryview(self._payload)


class SimTransport:
    """One end of a connection, as a link sees it."""

    def __init__(self, internet: Internet, program: Program, listener: Any) -> None:
        self._internet = internet
        self.program = program
        self._life = program.incarnation
        self._listener = listener
        self.other: SimTransport
        self.intake: SimIntake | None = None
        self.is_close_frame_sent = False
        self.is_disconnected = False
        self._ended: asyncio.Future[None] = program.loop.create_future()
        self._sent: deque[tuple[int, Callable[[], None]]] = deque()
        """What is on its way to the other end, and when it arrives."""
        self._cut = False

    @property
    def underlying_transport(self) -> SimTransport:
        return self

    # --- what links do ---

    def send(self, kind: WSMsgType, data: bytes) -> None:
        """Put a frame on its way."""
        if self.is_disconnected:
            return
        world = self._internet.world
        delay_ms, held_ms = world.rng.randint(1, 8), world.rng.randint(50, HELD_MS_MAX)
        held = world.faults.strikes(Fault.DELAY, HELD_PROBABILITY)
        cut = world.faults.strikes(Fault.DROP, CUT_PROBABILITY)
        frame = SimFrame(kind, bytes(data))
        self._put(held_ms if held else delay_ms, lambda: self.other.hear(frame))
        if cut:
            self.program.note("loses its connection to %s", self.other.program.name)
            world.reach("connection.cut")
            self.cut()

    def send_close(self, *_: object) -> None:
        self.is_close_frame_sent = True

    def disconnect(self, graceful: bool = True) -> None:  # noqa: ARG002
        """Hang up; what was sent before still arrives."""
        if not self.is_disconnected:
            self.end()
            self._put(1, self.other.ended)

    async def wait_disconnected(self) -> None:
        await asyncio.shield(self._ended)

    # --- what happens to it ---

    def _put(self, delay_ms: int, arrives: Callable[[], None]) -> None:
        at_ms = self._internet.world.now_ms + delay_ms
        if self._sent:
            at_ms = max(at_ms, self._sent[-1][0])
        self._sent.append((at_ms, arrives))
        if len(self._sent) == 1:
            self._pump_in(delay_ms)

    def _pump_in(self, delay_ms: int) -> None:
        self._internet.world.call_in(delay_ms, self._pump)

    def _pump(self) -> None:
        world = self._internet.world
        if world.network.is_cut(self.program.name, self.other.program.name):
            self._pump_in(LOOK_AGAIN_MS)
            return
        while self._sent and self._sent[0][0] <= world.now_ms:
            _, arrives = self._sent.popleft()
            if not self._cut:
                self.other.inject(arrives)
        if self._sent:
            self._pump_in(self._sent[0][0] - world.now_ms)

    def cut(self) -> None:
        """The connection is gone, with all that is on its way; both sides notice that later."""
        for side in (self, self.other):
            side._cut = True
            noticed_ms = self._internet.world.rng.randint(1, NOTICED_MS_MAX)
            self._internet.world.call_in(noticed_ms, partial(side.inject, side.ended))

    def lost(self) -> None:
        """The program at this end is dead; the other end is told by its system."""
        self.is_disconnected = True
        self._put(1, self.other.ended)

    def inject(self, call: Callable[[], None]) -> None:
        """Have this end's program do something, if it still lives."""
        if self.program.incarnation == self._life:
            self.program.inject(call)

    def hear(self, frame: SimFrame) -> None:
        """A frame has come."""
        self._take(lambda: self._listener.on_ws_frame(self, frame))

    def ended(self) -> None:
        """The other side has hung up, or is gone."""
        self._take(self.end)

    def _take(self, call: Callable[[], None]) -> None:
        if self.is_disconnected:
            return
        if self.intake is None:
            call()
        else:
            self.intake.arrived(self, call)

    def end(self) -> None:
        """This side has learned that the connection has ended."""
        if not self.is_disconnected:
            self.is_disconnected = True
            self._internet.ends.pop(self, None)
            self.program.loop.call_soon(self._tell_end)

    def _tell_end(self) -> None:
        self._listener.on_ws_disconnected(self)
        if not self._ended.done():
            self._ended.set_result(None)


class SimIntake:
    """Reads from many connections at a time, as :class:`headrace.net.intake.Intake` does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._loop = loop
        self._waiting: list[tuple[SimTransport, Callable[[], None]]] = []
        self._watching = True
        self._pause: asyncio.TimerHandle | None = None

    def add(self, transport: SimTransport) -> None:
        transport.intake = self

    def remove(self, transport: SimTransport) -> None:
        transport.intake = None

    def arrived(self, transport: SimTransport, call: Callable[[], None]) -> None:
        """Something can be read."""
        self._waiting.append((transport, call))
        if self._watching and len(self._waiting) == 1:
            self._loop.call_soon(self.look)

    def look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport, call in waiting:
            if not transport.is_disconnected:
                call()
        busy = self._busy()
        self._watching = not busy
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(PAUSE_S, self.look) if busy else None

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()


class SimRequest:
    """The first request of a connection."""

    def __init__(self, path: str, headers: dict[str, str]) -> None:
        self.path = path.encode()
        self.headers = headers


class SimServer:
    """Takes connections at a port."""

    def __init__(
        self, internet: Internet, program: Program, admit: Callable[[Any], Any], port: int
    ) -> None:
        self._internet = internet
        self.program = program
        self.admit = admit
        self.port = port

    @property
    def sockets(self) -> list[SimServer]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def close(self) -> None:
        self._internet.servers.pop(self.port, None)

    async def wait_closed(self) -> None:
        return


class SimSockets(Sockets):
    """The network as one program has it."""

    def __init__(self, internet: Internet, program: Program) -> None:
        self._internet = internet
        self._program = program
        self.connect = self._dial
        self.serve = self._listen

    def keep_alive(self, server: object) -> None:
        """Which connections end, and when, is the simulator's to say."""

    def intake(self, busy: Callable[[], bool]) -> SimIntake:
        return SimIntake(self._program.loop, busy)

    async def _listen(
        self, admit: Callable[[Any], Any], host: str, port: int, **_: object
    ) -> SimServer:
        del host
        return self._internet.listen(self._program, admit, port)

    async def _dial(
        self, make: Callable[[], Any], url: str, *, extra_headers: dict[str, str], **_: object
    ) -> tuple[SimTransport, Any]:
        link, target = make(), urlsplit(url)
        answer: asyncio.Future[SimTransport] = self._program.loop.create_future()
        request = SimRequest(target.path, extra_headers)
        self._internet.dial(self._program, target.port or 0, request, link, answer)
        return await answer, link


class Internet:
    """All connections of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[int, SimServer] = {}
        self.ends: dict[SimTransport, None] = {}
        self._next_port = FIRST_PORT

    def listen(self, program: Program, admit: Callable[[Any], Any], port: int) -> SimServer:
        """Take connections, at any port that was never used before unless one is given."""
        if not port:
            self._next_port += 1
            port = self._next_port
        server = self.servers[port] = SimServer(self, program, admit, port)
        return server

    def dial(
        self,
        program: Program,
        port: int,
        request: SimRequest,
        link: Any,
        answer: asyncio.Future[SimTransport],
    ) -> None:
        """Connect; answered later, or never."""
        _Dialling(self, program, request, link, answer).begin(port)

    def died(self, program: Program) -> None:
        """A program is gone, and its system closes what it had open."""
        for port in [port for port, each in self.servers.items() if each.program is program]:
            del self.servers[port]
        for end in [end for end in self.ends if end.program is program]:
            del self.ends[end]
            end.lost()


class _Dialling:
    """One connection on its way."""

    def __init__(
        self,
        internet: Internet,
        program: Program,
        request: SimRequest,
        link: Any,
        answer: asyncio.Future[SimTransport],
    ) -> None:
        self._internet, self._world = internet, internet.world
        self._program, self._life = program, program.incarnation
        self._request, self._link, self._answer = request, link, answer
        self._delay_ms = self._world.rng.randint(1, 8)
        self._reset = self._world.faults.strikes(Fault.DROP, RESET_PROBABILITY)

    def begin(self, port: int) -> None:
        """Set out."""
        self._world.call_in(self._delay_ms, lambda: self._arrive(port))

    def _tell(self, call: Callable[[], None]) -> None:
        if self._program.incarnation == self._life:
            self._program.inject(call)

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def _arrive(self, port: int) -> None:
        server = self._internet.servers.get(port)
        if server is not None and self._world.network.is_cut(
            self._program.name, server.program.name
        ):
            return  # the dialling side gives up by its timeout
        if server is None or self._reset:
            refused = ConnectionRefusedError if server is None else ConnectionResetError
            self._tell(lambda: self._fail(refused("simulated")))
            return
        server.program.inject(lambda: self._accept(server))

    def _accept(self, server: SimServer) -> None:
        found = server.admit(self._request)
        if not isinstance(found, WSListener):
            self._tell(lambda: self._fail(WSError("refused")))
            return
        if self._program.incarnation != self._life:
            return
        here = SimTransport(self._internet, self._program, self._link)
        there = SimTransport(self._internet, server.program, found)
        here.other, there.other = there, here
        self._internet.ends |= {here: None, there: None}
        found.on_ws_connected(there)  # type: ignore[arg-type]
        self._world.call_in(self._delay_ms, lambda: self._tell(lambda: self._connected(here)))

    def _connected(self, here: SimTransport) -> None:
        if self._answer.done():
            here.disconnect()
        elif here.is_disconnected:
            self._answer.set_exception(ConnectionResetError("simulated"))
        else:
            self._link.on_ws_connected(here)
            self._answer.set_result(here)
