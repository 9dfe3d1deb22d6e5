"""What dead letters are called: the stream of a group, and the headers that tell of each."""

from __future__ import annotations

REASON = "headrace-reason"
DETAIL = "headrace-detail"
STREAM = "headrace-stream"
SEGMENT = "headrace-segment"
OFFSET = "headrace-offset"
ATTEMPTS = "headrace-attempts"
GROUP = "headrace-group"
MEMBER = "headrace-member"
DIED = "headrace-died"
"""When it was given up, in microseconds since 1970."""
LIVES = "headrace-lives"
"""How often it has died."""
PUT_BACK = "headrace-put-back"
"""On an event that was a dead letter: of which group."""


def stream_of(group: str) -> str:
    """The name of a group's dead-letter stream."""
    return f"{group}.dead"
