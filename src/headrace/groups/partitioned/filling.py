"""How it stands with the filling of an elastic group's work queue, and what is wanting."""

from __future__ import annotations

import msgspec

from headrace.groups.partitioned.names import GroupName

PIPELINE = "pipeline"
"""The lease of the supervisor that leads, and the bucket of what it wrote down."""
UP = "node-up"
"""The lease of ``headrace up``, which fills queues by itself while no pipeline leads."""


class JobNote(msgspec.Struct, frozen=True):
    """What matters here of what the supervisor wrote down about a job."""

    failures: int = 0
    last_error: str | None = None


class Filling(msgspec.Struct, frozen=True):
    """The way into a work queue, at one moment."""

    name: GroupName
    floors: tuple[int, ...]
    """How far each segment of the source was read."""
    behind: int
    """Events of the source that are not read yet."""
    led: bool
    """Whether a pipeline runs."""
    up: bool
    """Whether ``headrace up`` runs."""
    job: JobNote | None
    exact: bool = True
    """Whether all of those events pass the filter of the group, as far as is known."""
    waits: str = ""
    """Why it is not filled in this region: a replicated group that is at home elsewhere."""

    @property
    def finding(self) -> str:
        """What is wanting and what to do about it; nothing if all is well."""
        what, next_step = self.in_words
        return f"{what}{next_step}"

    @property
    def in_words(self) -> tuple[str, str]:
        """What is wanting, and what to do about it or why it is so."""
        filled = self.job is not None and not self.job.failures if self.led else self.up
        if not self.behind or filled or self.waits:
            return "", ""
        one = self.behind == 1
        what = (
            f"{'' if self.exact else 'up to '}{self.behind:,} event{'' if one else 's'} of stream "
            f"{self.name.stream!r} {'is' if one else 'are'} not in the work queue of group "
            f"{self.name.group!r}"
        )
        if not self.led:
            return f"{what}, and no pipeline runs to fill it", "; start one with: headrace pipeline"
        if self.job is None:
            return f"{what}: the pipeline has not begun with it", "; see: headrace pipeline status"
        return f"{what}: the job of the pipeline fails ({self.job.last_error})", ""


def job_key(name: GroupName) -> str:
    """Where the supervisor writes down how the group's job is doing."""
    return f"job/partition/{name.key}"
