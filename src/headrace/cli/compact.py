"""``headrace stream compact``: large files of small batches, now or by a policy."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from cyclopts import Group, Parameter
from rich.markup import escape
from rich.progress import SpinnerColumn, TextColumn

from headrace.cli.failures import UsageError
from headrace.cli.options import NONE, Options, console, print_json, progress
from headrace.cli.policies import duration_text, size_text
from headrace.cli.values import duration_s, size_bytes
from headrace.log.compact import Compacted
from headrace.log.compact_policy import CompactionPolicy
from headrace.log.log import Log

WHEN = Group("What is worth a file", sort_key=10)


def compact(
    name: str,
    /,
    *,
    target: Annotated[
        str | None, Parameter(group=WHEN, help="Size of a file to aim at (128MiB if not given).")
    ] = None,
    min_batches: Annotated[
        int | None, Parameter(group=WHEN, help="Fewest batches worth a file (8 if not given).")
    ] = None,
    min_age: Annotated[
        str | None, Parameter(group=WHEN, help="Leave younger batches alone (1m if not given).")
    ] = None,
    span: Annotated[
        str | None,
        Parameter(group=WHEN, help="A file's events were appended within this (1d if not given)."),
    ] = None,
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
    given = [option is not None for option in (target, min_batches, min_age, span)]
    if policy == "off" and any(given):
        raise UsageError("--policy off takes no settings")
    with options.open() as log:
        before = log.compaction(name)
        settings = _settings(before or CompactionPolicy(), target, min_batches, min_age, span)
        if policy is not None:
            kept = settings if policy == "on" else None
            log.set_compaction(name, kept)
            _show_policy(name, kept, options)
            return
        done = _compact(log, name, settings, dry_run, quiet=options.json)
    if options.json:
        print_json(done)
    else:
        _show(done)


def _settings(
    base: CompactionPolicy,
    target: str | None,
    min_batches: int | None,
    min_age: str | None,
    span: str | None,
) -> CompactionPolicy:
    return msgspec.structs.replace(
        base,
        target_bytes=base.target_bytes if target is None else size_bytes(target, "--target"),
        min_batches=base.min_batches if min_batches is None else min_batches,
        min_age_s=base.min_age_s if min_age is None else int(duration_s(min_age, "--min-age")),
        span_s=base.span_s if span is None else int(duration_s(span, "--span")),
    )


def _compact(
    log: Log, name: str, policy: CompactionPolicy, dry_run: bool, *, quiet: bool
) -> Compacted:
    text = TextColumn("{task.completed:,.0f} events in {task.fields[files]:,} files")
    with progress(SpinnerColumn(), text, quiet=quiet) as bar:
        task = bar.add_task("", total=None, files=0)
        return log.compact(
            name,
            policy,
            dry_run=dry_run,
            progress=lambda done: bar.update(task, completed=done.events, files=done.files),
        )


def _show(done: Compacted) -> None:
    named = f"stream [bold]{escape(done.stream)}[/bold]:"
    if not done.files:
        console().print(f"{named} nothing to compact")
    elif done.dry_run:
        console().print(
            f"{named} would make {_files(done.files)} of {done.batches:,} batches with "
            f"{done.events:,} events ({size_text(done.bytes_before)})"
        )
    else:
        sizes = f"{size_text(done.bytes_before)} → {size_text(done.bytes_after)}"
        console().print(
            f"{named} made {_files(done.files)} of {done.batches:,} batches with "
            f"{done.events:,} events ({sizes})"
        )
    for message in done.damaged:
        console().print(f"left alone: {escape(message)}")


def _show_policy(name: str, policy: CompactionPolicy | None, options: Options) -> None:
    if options.json:
        shown = None if policy is None else msgspec.structs.asdict(policy)
        print_json({"stream": name, "policy": shown})
        return
    named = f"stream [bold]{escape(name)}[/bold]"
    if policy is None:
        console().print(f"{named} is not compacted any more")
        return
    console().print(
        f"{named} is compacted by headrace pipeline: files of about "
        f"{size_text(policy.target_bytes)} from {policy.min_batches} batches on, "
        f"{_age(policy.min_age_s)} they were appended"
    )


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _age(age_s: int) -> str:
    return f"{duration_text(age_s)} after" if age_s else "as soon as"
