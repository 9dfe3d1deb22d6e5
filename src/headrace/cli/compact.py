"""``headrace stream compact``: large files of small batches, now or by a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from cyclopts import Group, Parameter
from rich.markup import escape

from headrace.cli.done_shapes import CompactedStream, CompactionPolicyShape, CompactionSet
from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options
from headrace.cli.output import counted, progress
from headrace.cli.policies import duration_text, size_text
from headrace.cli.values import duration_s, size_bytes
from headrace.log.compact import Compacted
from headrace.log.compact_policy import CompactionPolicy

WHEN = Group("What is worth a file", sort_key=10)


@Parameter(name="*", group=WHEN)
@dataclass(frozen=True)
class Worth:
    """Which batches become a file; what is not given is as the stream's policy says."""

    target: Annotated[
        str | None, Parameter(help="Size of a file to aim at (128MiB if not given).")
    ] = None
    min_batches: Annotated[
        int | None, Parameter(help="Fewest batches worth a file (8 if not given).")
    ] = None
    min_age: Annotated[
        str | None, Parameter(help="Leave younger batches alone (1m if not given).")
    ] = None
    span: Annotated[
        str | None,
        Parameter(help="A file's events were appended within this (1d if not given)."),
    ] = None

    def policy(self, base: CompactionPolicy) -> CompactionPolicy:
        target, age, span = self.target, self.min_age, self.span
        return CompactionPolicy(
            target_bytes=base.target_bytes if target is None else size_bytes(target, "--target"),
            min_batches=base.min_batches if self.min_batches is None else self.min_batches,
            min_age_s=base.min_age_s if age is None else int(duration_s(age, "--min-age")),
            span_s=base.span_s if span is None else int(duration_s(span, "--span")),
        )


AS_IT_IS = Worth()


def compact(
    name: str,
    /,
    *,
    worth: Worth = AS_IT_IS,
    policy: Literal["on", "off"] | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Make large files of a stream's small batches; offsets stay, readers notice nothing.

    * `headrace stream compact orders --dry-run`
    * `headrace stream compact orders --min-age 10m`
    * `headrace stream compact orders --policy on --target 256MiB`

    Parameters
    ----------
    policy
        on: have `headrace pipeline` do it from now on, by these settings; off: no longer.  Nothing
        is compacted now.
    dry_run
        Only say what would be done.
    """
    if policy is not None and dry_run:
        raise UsageError("--dry-run is for a compaction, and --policy only says who does it")
    if policy == "off" and worth != AS_IT_IS:
        raise UsageError("--policy off takes no settings")
    with options.open() as log:
        settings = worth.policy(log.compaction(name) or CompactionPolicy())
        if policy is not None:
            kept = settings if policy == "on" else None
            log.set_compaction(name, kept)
            data = None if kept is None else _shape(kept)
            options.show(CompactionSet(stream=name, policy=data), _policy_text(name, kept))
            return
        from rich.progress import SpinnerColumn, TextColumn

        text = TextColumn("{task.completed:,.0f} events in {task.fields[files]:,} files")
        with progress(SpinnerColumn(), text, quiet=options.json) as bar:
            task = bar.add_task("", total=None, files=0)
            done = log.compact(
                name,
                settings,
                dry_run=dry_run,
                progress=lambda done: bar.update(task, completed=done.events, files=done.files),
            )
    told = msgspec.structs.asdict(done)
    options.show(CompactedStream(compacted_events=told.pop("events"), **told), *_lines(done))


def _shape(kept: CompactionPolicy) -> CompactionPolicyShape:
    return CompactionPolicyShape(**msgspec.structs.asdict(kept))


def _lines(done: Compacted) -> Iterator[str]:
    named = f"stream [bold]{escape(done.stream)}[/bold]:"
    if not done.files:
        yield f"{named} nothing to compact"
    else:
        sizes = size_text(done.bytes_before)
        sizes += "" if done.dry_run else f" → {size_text(done.bytes_after)}"
        yield (
            f"{named} {'would make' if done.dry_run else 'made'} {counted(done.files, 'file')} of "
            f"{done.batches:,} batches with {done.events:,} events ({sizes})"
        )
    yield from (f"left alone: {escape(message)}" for message in done.damaged)


def _policy_text(name: str, policy: CompactionPolicy | None) -> str:
    named = f"stream [bold]{escape(name)}[/bold]"
    if policy is None:
        return f"{named} is not compacted any more"
    age_s = policy.min_age_s
    return (
        f"{named} is compacted by headrace pipeline: files of about "
        f"{size_text(policy.target_bytes)} from {policy.min_batches} batches on, "
        f"{f'{duration_text(age_s)} after' if age_s else 'as soon as'} they were appended"
    )
