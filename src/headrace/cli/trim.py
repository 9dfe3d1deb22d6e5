"""``headrace stream trim``: remove old events; asked for by hand, only after saying who loses."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from headrace.catalog.streams import Stream
from headrace.cli import values
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import approve, counted
from headrace.cli.stream_shapes import TrimLoss, TrimmedSegment, TrimmedStream
from headrace.groups.operations import trim as operation
from headrace.groups.operations.trim import GroupLoss, TrimPlan


def trim(
    name: str,
    /,
    *,
    before: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Remove what the stream's policy lets go, or all before a place.

    Only whole batches are removed, so a little more than asked may stay.

    * `headrace stream trim orders`
    * `headrace stream trim orders --before 2026-01-01 --dry-run`
    * `headrace stream trim orders --before 0:1000,1:800 --yes`

    Parameters
    ----------
    before
        A time, or segment:offset positions, comma-separated; overrides the policy.
    dry_run
        Only say what would go, and which groups would lose how much.
    yes
        Do not ask, also if groups lose what they have not acked.
    """
    cut = None if before is None else values.place(before, "--before")
    if isinstance(cut, str | int):
        raise UsageError(
            f"--before: {before!r} is neither a time nor positions; write 2026-01-01, 7d for 7 "
            "days ago, or 0:1000,1:800"
        )
    with options.open() as log:
        _check_within(log.stream(name), cut)
        planned = operation.plan(log, name, cut)
        if dry_run:
            _show(planned, options, dry_run=True)
            return
        if planned.losses and before is not None:
            gone = counted(planned.removed_events, "event")
            losses = f"of {gone} that would go, {'; '.join(map(_loss, planned.losses))}"
            approve(
                f"trim stream {name!r}? {losses}",
                f"stream {name!r}",
                refusal=f"stream {name!r}: {losses}; to trim it all the same, add --yes",
                yes=yes,
            )
        done = operation.trim(log, name, cut)
    _show(done, options, dry_run=False)


def _loss(loss: GroupLoss) -> str:
    most = "" if loss.exact else "up to "
    what = "subscription" if loss.kind == operation.EPOCH else f"{loss.kind} group"
    return f"{what} {loss.group} has not acked {most}{loss.lost_events:,}"


def _show(done: TrimPlan, options: Options, *, dry_run: bool) -> None:
    data = TrimmedStream(
        stream=done.stream,
        dry_run=dry_run,
        removed_events=done.removed_events,
        segments=tuple(
            TrimmedSegment(
                segment=cut.segment, first_offset=cut.first, removed_events=cut.removed_events
            )
            for cut in done.cuts
        ),
        losses=tuple(
            TrimLoss(
                group=each.group,
                kind=each.kind,
                lost_events=each.lost_events,
                exact=each.exact,
                segments=each.segments,
            )
            for each in done.losses
        ),
    )
    starts = "would start" if dry_run else "starts"
    lines = (
        f"  segment {cut.segment}: {cut.removed_events:,}, it {starts} at {cut.first:,} now"
        for cut in done.cuts
        if cut.removed_events
    )
    verb = "would remove" if dry_run else "removed"
    total = f"stream [bold]{escape(done.stream)}[/bold]: {verb} {done.removed_events:,} events"
    losses = (f"  {escape(_loss(loss))} of them" for loss in done.losses)
    options.show(data, total, *lines, *losses)


def _check_within(stream: Stream, cut: object) -> None:
    """Refuse a place beyond the end: most likely a typo, it would remove everything."""
    for segment in stream.segments:
        offset = cut.get(segment.number, 0) if isinstance(cut, dict) else 0
        if offset > segment.head:
            raise UsageError(
                f"--before: offset {offset} is beyond segment {segment.number}, which ends at "
                f"{segment.head}; give that to remove all of it"
            )
