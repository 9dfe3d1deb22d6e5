"""Which events may be in flight, by key.

A key is *held* by its events that are in flight, refused or dying, and by those that were freed
and are next.  While it is held to its limit, or one of its events rests after a refusal, later
events are *parked* behind it; the queue exists only for such keys.  When the key is released,
its first parked events are *freed*: they are taken before the buffer is walked on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator


class KeyOrder:
    """Holds, parks and frees the events of every key."""

    __slots__ = ("freed", "held", "limit", "parked", "parked_events", "resting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: dict[int, int] = {}
        self.parked: dict[int, deque[int]] = {}
        self.parked_events = 0
        self.freed: deque[tuple[int, int]] = deque()  # offset and key
        self.resting: dict[int, set[int]] = {}  # refused offsets by key

    @property
    def waiting_events(self) -> int:
        """Events that are parked, or freed and not taken."""
        return self.parked_events + len(self.freed)

    def waiting(self) -> Iterator[int]:
        """The events that are parked, or freed and not taken."""
        yield from (offset for offset, _ in self.freed)
        for queue in self.parked.values():
            yield from queue

    def take_freed(self, room: int, offsets: list[int], keys: list[int]) -> int:
        """Move freed events into the lists; gives the room that is left."""
        freed = self.freed
        while room > 0 and freed:
            offset, key = freed.popleft()
            offsets.append(offset)
            keys.append(key)
            room -= 1
        return room

    def walk(
        self,
        buffer_offsets: list[int],
        buffer_keys: list[int],
        cursor: int,
        room: int,
        offsets: list[int],
        keys: list[int],
    ) -> int:
        """Take from the buffer what may go and park the rest; gives the new cursor."""
        held, parked, limit, resting = self.held, self.parked, self.limit, self.resting
        end = len(buffer_offsets)
        if not parked and not resting and room > 0:
            # Nothing waits, and mostly no two of a block share a key: then all of it may go.
            stop = min(cursor + room, end)
            block = dict.fromkeys(buffer_keys[cursor:stop], 1)
            if len(block) == stop - cursor and held.keys().isdisjoint(block):
                held.update(block)
                offsets += buffer_offsets[cursor:stop]
                keys += block
                return stop
        while room > 0 and cursor < end:
            key = buffer_keys[cursor]
            count = held.get(key, 0)
            if count < limit and key not in parked and key not in resting:
                held[key] = count + 1
                offsets.append(buffer_offsets[cursor])
                keys.append(key)
                room -= 1
            else:
                queue = parked.get(key)
                if queue is None:
                    queue = parked[key] = deque()
                queue.append(buffer_offsets[cursor])
                self.parked_events += 1
            cursor += 1
        return cursor

    def release(self, key: int) -> None:
        """One event of this key is done with: the next may come."""
        count = self.held[key] - 1
        if count:
            self.held[key] = count
        else:
            del self.held[key]
        if key in self.parked:
            self.fill(key)

    def release_all(self, keys: Iterable[int]) -> None:
        """Many events are done with; a limit of one has code of its own, as the hot path."""
        if self.limit != 1:
            for key in keys:
                self.release(key)
            return
        held, parked, freed = self.held, self.parked, self.freed
        if not parked:
            deque(map(held.__delitem__, keys), maxlen=0)
            return
        freed_before = len(freed)
        for key in keys:
            queue = parked.get(key)
            if queue is None:
                del held[key]
            else:  # the key passes from one event to the next
                freed.append((queue.popleft(), key))
                if not queue:
                    del parked[key]
        self.parked_events -= len(freed) - freed_before

    def rest(self, key: int, offset: int) -> None:
        """An event was refused: nothing of its key goes before it comes again."""
        self.resting.setdefault(key, set()).add(offset)
        if self.limit == 1 or not self.freed:
            return
        back = [freed for freed, other in self.freed if other == key]
        if back:  # these were next, and now must wait
            self.freed = deque(pair for pair in self.freed if pair[1] != key)
            self.parked.setdefault(key, deque()).extendleft(reversed(back))
            self.parked_events += len(back)
            self.held[key] -= len(back)

    def wake(self, key: int, offset: int) -> None:
        """A refused event comes again."""
        resting = self.resting[key]
        resting.discard(offset)
        if not resting:
            del self.resting[key]
            self.fill(key)

    def drop(self, gone: Collection[int]) -> None:
        """Events that wait are not to be taken any more: those behind them move up."""
        for key, queue in list(self.parked.items()):
            kept = deque(offset for offset in queue if offset not in gone)
            self.parked_events -= len(queue) - len(kept)
            if kept:
                self.parked[key] = kept
            else:
                del self.parked[key]
        released = [key for offset, key in self.freed if offset in gone]
        if released:
            self.freed = deque(pair for pair in self.freed if pair[0] not in gone)
            for key in released:
                self.release(key)

    def fill(self, key: int) -> None:
        """Free as many parked events of this key as may be in flight."""
        queue = self.parked.get(key)
        if queue is None or key in self.resting:
            return
        held = self.held.get(key, 0)
        while queue and held < self.limit:
            self.freed.append((queue.popleft(), key))
            self.parked_events -= 1
            held += 1
        self.held[key] = held
        if not queue:
            del self.parked[key]
