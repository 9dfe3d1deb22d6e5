"""Messages between programs, over WebSocket.

A program listens (``listener``) and dials others (``links``).  A connection shows the catalog's
secret in its first request or is refused (``admission``); with ``tls`` both sides are verified
before that.  Messages go through a bounded ``outbox`` per connection, with back-pressure.  This
package knows no message types: a ``Wire`` says how messages become frames, and sets all bounds.

Delivery is at most once: a message that cannot be sent is dropped, a connection that ends is
dialled again with the next message (after looking the address up anew), and the protocol above
repeats by its own timers.  So a slow peer costs no more than the room in its outbox.  A
frame that is too large or makes no sense ends the connection it came on, and nothing else.

A listener may have hundreds of connections with a few frames a second on each, so the cost of a
frame counts: frames are received and sent by plain calls, without a task for each connection.
"""

from headrace.net.links import Links, Target
from headrace.net.listener import Listener
from headrace.net.outbox import Outbox, Post
from headrace.net.tls import TLS, Secured
from headrace.net.wire import FRAME_ROOM, LARGE_FRAME_BYTES_MAX, Codec, Frame, Wire

__all__ = [
    "FRAME_ROOM", "LARGE_FRAME_BYTES_MAX", "TLS", "Codec", "Frame", "Links", "Listener", "Outbox",
    "Post", "Secured", "Target", "Wire",
]  # fmt: skip
