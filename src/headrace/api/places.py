"""Places in all streams of a reader group, by the names that programs know them by."""

from __future__ import annotations

from headrace.groups.readers.positions import GroupCheckpoint, StreamCut

Checkpoint = GroupCheckpoint

__all__ = ["Checkpoint", "StreamCut"]
