"""``headrace group dead``: dead letters of a group: look at them, put back, discard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.markup import escape

from headrace.cli import records, values
from headrace.cli.failures import UsageError
from headrace.cli.group_shapes import death_reason
from headrace.cli.options import NONE, Options
from headrace.cli.output import approve, counted, table
from headrace.cli.read import printable
from headrace.cli.screens import time_text
from headrace.groups.operations import dead_letters
from headrace.groups.operations.dead_letters import LIVES_MAX, PutBack
from headrace.groups.operations.letters import LIMIT_MAX, Letter, Selection
from headrace.log.plain import Row

app = App(
    name="dead", help="Dead letters of a group: list, show, put back and discard them.",
    help_epilogue="",
)  # fmt: skip

ERROR_CHARS_MAX = 80
GroupOf = Annotated[
    str, Parameter(help="STREAM/GROUP, $share/GROUP/FILTER, session/NAME/FILTER, or a plain name.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class WhichLetters:
    """Which letters; those that fit everything given."""

    ids: Annotated[str | None, Parameter(help="Their numbers, comma-separated.")] = None
    reason: Annotated[
        str | None, Parameter(help="Those with this text in their reason or error.")
    ] = None
    key: Annotated[str | None, Parameter(help="Only letters of this key.")] = None
    since: Annotated[
        str | None,
        Parameter(help="Only letters that died since then: a time, or 15m for 15 minutes ago."),
    ] = None
    until: Annotated[str | None, Parameter(help="Those that died before this time.")] = None
    limit: Annotated[int | None, Parameter(help="How many letters at most, the oldest first.")] = (
        None
    )

    @property
    def given(self) -> bool:
        return self != ANY

    def selection(self, limit: int = LIMIT_MAX) -> Selection:
        if self.limit is not None and not 1 <= self.limit <= LIMIT_MAX:
            raise UsageError(f"--limit {self.limit}: give 1 to {LIMIT_MAX}")
        return Selection(
            ids=None if self.ids is None else tuple(values.numbers(self.ids, "--ids")),
            reason=self.reason,
            key=self.key,
            since=None if self.since is None else values.moment(self.since, "--since"),
            until=None if self.until is None else values.moment(self.until, "--until"),
            limit=limit if self.limit is None else self.limit,
        )


ANY = WhichLetters()


@app.command
def ls(name: GroupOf, /, *, which: WhichLetters = ANY, options: Options = NONE) -> None:
    """List dead letters, oldest first; 100 unless --limit says otherwise.

    Example: `headrace group dead ls orders/billing --reason 'timed out' --since 2h`
    """
    chosen = which.selection(100)
    with options.open() as log:
        found = dead_letters.letters(log, name, chosen)
    rows = (
        (
            str(each.id),
            _time(each.died_us),
            printable(each.subject),
            printable(each.key or ""),
            each.attempts,
            each.lives,
            each.reason,
            _cut(" ".join(each.error.split())),
        )
        for each in found
    )
    heads = (">letter", "died", "subject", "key", ">attempts", ">lives", "reason", "error")
    none = f"group {name} has no such dead letters"
    options.show([_data(each) for each in found], table(heads, rows) if found else none)


@app.command
def reasons(name: GroupOf, /, *, options: Options = NONE) -> None:
    """Say what letters died of, most frequent first.

    Example: `headrace group dead reasons orders/billing`
    """
    with options.open() as log:
        found = dead_letters.reasons(log, name)
    rows = (
        (
            each.letters,
            each.reason,
            _cut(each.error),
            str(each.first_id),
            _time(each.first_died_us),
            _time(each.last_died_us),
        )
        for each in found
    )
    heads = (">letters", "reason", "error", ">first", "first died", "last died")
    data = [death_reason(each) for each in found]
    options.show(data, table(heads, rows) if found else f"group {name} has no dead letters")


@app.command
def show(name: GroupOf, letter: int, /, *, options: Options = NONE) -> None:
    """Show one letter: when and why it died, its attempts, its last error and itself.

    Example: `headrace group dead show orders/billing 17`
    """
    with options.open() as log:
        found = dead_letters.show(log, name, letter)
    value = printable(found.value[:4096].decode(errors="backslashreplace"))
    lines = [
        f"letter {found.id} of {escape(name)}: {escape(printable(found.subject))}"
        f"{f', key {escape(printable(found.key))}' if found.key else ''}",
        f"died {_time(found.died_us) or 'at an unknown time'} after "
        f"{counted(found.attempts, 'attempt')}, for the {_nth(found.lives)} time"
        f"{f', with member {escape(found.member)}' if found.member else ''}",
        f"reason: {escape(found.reason)}",
        f"was at {escape(found.stream)}/{found.segment}:{found.offset}, of "
        f"{_time(found.timestamp_us)}",
    ]
    error = [f"last error:\n{escape(_lines(found.error))}"] if found.error else []
    options.show(_data(found), *lines, *error, f"value: {escape(value)}")


@app.command(name="put-back")
def put_back(
    name: GroupOf,
    /,
    *,
    which: WhichLetters = ANY,
    all: Annotated[bool, Parameter(name="--all", negative="", help="Every letter.")] = False,
    lives_max: Annotated[
        int, Parameter(help="Leave those that have died so often where they are.")
    ] = LIVES_MAX,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Have dead letters delivered again; each comes back once, whoever repeats this.

    Those of an elastic group go to its work queue.  The others are published to their subjects once
    more, with a header that says so: other groups that read those see them again, too.

    * `headrace group dead put-back orders/billing --reason 'timed out' --dry-run`
    * `headrace group dead put-back orders/billing --ids 3,4 --yes`

    Parameters
    ----------
    dry_run
        Only say what would be put back, and which other groups would see it.
    yes
        Do not ask, also if other groups see them again.
    """
    _check_chosen(which, all)
    if not 1 <= lives_max <= 1_000_000:
        raise UsageError(f"--lives-max {lives_max}: give 1 or more")
    chosen = which.selection()
    with options.open() as log:
        plan = dead_letters.put_back(log, name, chosen, lives_max=lives_max, dry_run=True)
        if not dry_run:
            if plan.seen_by:
                seen = f"{', '.join(plan.seen_by)} will see {counted(plan.letters, 'event')} again"
                approve(
                    f"put back? {seen}",
                    f"group {name!r}",
                    refusal=f"{seen}, too; to put them back all the same, add --yes",
                    yes=yes,
                )
            plan = dead_letters.put_back(log, name, chosen, lives_max=lives_max)
    _show_done(plan, "put back", options)


@app.command
def discard(
    name: GroupOf,
    /,
    *,
    which: WhichLetters = ANY,
    all: Annotated[bool, Parameter(name="--all", negative="", help="Every letter.")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
    options: Options = NONE,
) -> None:
    """Forget dead letters for good.

    Example: `headrace group dead discard orders/billing --until 30d --yes`

    Parameters
    ----------
    dry_run
        Only say how many would go.
    yes
        Do not ask.
    """
    _check_chosen(which, all)
    chosen = which.selection()
    with options.open() as log:
        plan = dead_letters.discard(log, name, chosen, dry_run=True)
        if not dry_run:
            what = counted(plan.letters, "dead letter")
            approve(
                f"discard {what} of {plan.group}?",
                f"group {name!r}",
                refusal=f"discarding {what} needs a yes: add --yes",
                yes=yes,
            )
            plan = dead_letters.discard(log, name, chosen)
    _show_done(plan, "discarded", options)


def _check_chosen(which: WhichLetters, all: bool) -> None:
    if which.given == all:
        raise UsageError("say which letters: --ids, --reason, --key, --since, --until, or --all")


def _show_done(done: PutBack, verb: str, options: Options) -> None:
    letters = counted(done.letters, "letter")
    would = "would be " if done.dry_run else ""
    to = f" to {done.to}" if done.to else ""
    lines = [f"group [bold]{escape(done.group)}[/bold]: {letters} {would}{verb}{to}"]
    if done.seen_by:
        lines.append(f"seen again by {escape(', '.join(done.seen_by))}, too")
    if done.refused:
        lines.append(f"{done.refused:,} died too often and stay (see --lives-max)")
    options.show(done, *lines)


def _data(letter: Letter) -> dict[str, Any]:
    row = Row(
        segment=letter.segment,
        offset=letter.offset,
        timestamp_us=letter.timestamp_us,
        subject=letter.subject,
        key=letter.key,
        value=letter.value,
        headers=letter.headers,
        epoch=None,
        origin=None,
    )
    return {
        "id": letter.id,
        "stream": letter.stream,
        **records.shown(row),
        "died_at": _at(letter.died_us),
        "reason": letter.reason,
        "error": letter.error,
        "attempts": letter.attempts,
        "lives": letter.lives,
        "member": letter.member or None,
    }


def _at(at_us: int | None) -> str | None:
    return None if at_us is None else time_text(at_us)


def _time(at_us: int | None) -> str:
    return "" if at_us is None else time_text(at_us // 1_000_000 * 1_000_000)


def _cut(error: str) -> str:
    line = printable(error.partition("\n")[0]).rstrip(":")
    return line if len(line) <= ERROR_CHARS_MAX else line[: ERROR_CHARS_MAX - 1] + "…"


def _lines(text: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in text.splitlines())


def _nth(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")
