"""The ``headrace`` command.

Commands are named here and loaded when used, so that ``headrace --help`` answers at once.  The
options ``--catalog``, ``--store`` and ``--json`` may stand before or after a command's name.

Exit status: 0 done; 1 it could not be done, or a check failed; 2 the command or its input makes
no sense, and nothing was changed; 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from cyclopts import App, CycloptsError, UnusedCliTokensError

from headrace.cli.failures import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    UsageError,
    in_a_sentence,
    report,
    status_of,
)

VALUED = ("--catalog", "--store", "--store-option")
FLAGS = ("--json",)
INPUT_FLAGS = ("--json-lines", "--json")

EPILOGUE = """\
Before or after any command:

`--catalog` PLACE: a folder or a postgresql:// address; else $HEADRACE_CATALOG, else ./headrace-data

`--store` PLACE: where large batches go, if not beside the catalog: a folder, s3://bucket/prefix …

`--json`: print JSON, for programs

Exit status: 0 done, 1 failed, 2 wrong usage or bad input, 130 stopped with Ctrl-C.

Example: `headrace --catalog ./data stream create orders --subjects 'orders.>' --segments 4`
"""


def _version() -> str:
    from headrace import __version__

    return f"headrace {__version__}"


app = App(
    name="headrace",
    help="A durable, ordered, partitioned log for Python and Spark teams.",
    help_epilogue=EPILOGUE,
    help_format="markdown",
    version=_version,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
COMMANDS = (
    ("stream", "Create, look at, scale, compact, trim and remove streams."),
    ("publish", "Publish events: one, lines, JSON lines, or a Parquet or CSV file."),
    ("read", "Read events from any place, or as they arrive."),
    ("group", "Groups: create them, see who consumes what and why, and join them."),
    ("status", "How everything is, and what needs a person."),
    ("top", "Streams and groups on one screen, live."),
    ("reader", "Reader groups: create them, read, take checkpoints and go back to them."),
    ("epoch", "Epochs: publish them, read whole ones, see who holds them back."),
    ("region", "Regions: link streams to others, and move groups between them."),
    ("subscribe", "Consume events of a shared group, or of one's own."),
    ("session", "Look at the sessions of workers, and remove them."),
    ("find", "Find a key: where it lies, who consumes it, what became of it."),
    ("store", "Look after the files of large batches."),
    ("catalog", "Make, migrate and mend the catalog."),
    ("up", "Bring everything up: catalog, console, API, metrics, pipeline."),
    ("serve", "Serve the web console, the HTTP API and metrics."),
    ("token", "Who gets in to the console and the API."),
    ("pipeline", "Run the jobs that move data in bulk, with Spark."),
    ("doctor", "Check Python, Java, Spark, the catalog and the store."),
    ("bench", "How quick this machine is, in a few seconds."),
    ("demo", "The tour: a year of real flights through a log."),
    ("sim", "Run the protocols in a world where everything goes wrong."),
)
for _at, (_name, _help) in enumerate(COMMANDS):
    app.command(f"headrace.cli.{_name}:app", name=_name, help=_help, sort_key=_at)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    given = sys.argv[1:] if argv is None else argv
    ended: list[int] = []
    if argv is None:
        atexit.register(_leave, ended)
    _ready_streams("--json" in given)
    ended.append(run(given))
    sys.exit(ended[0])


def _leave(ended: list[int]) -> None:
    """End the process without taking the interpreter apart: a tenth of the time of most commands.

    Threads have ended by now, and what was registered after this has been called.  After a
    traceback, and where the output cannot be written, the interpreter ends as ever.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    if ended:
        os._exit(ended[0])


def _ready_streams(as_json: bool) -> None:
    """Open standard streams that a shell has closed, and escape what the terminal cannot encode."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        if as_json:
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="backslashreplace")


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if _by_ctrl_c(error):
            return EXIT_INTERRUPTED
        found = in_a_sentence(error)
        if found is None:
            raise
        options = {} if isinstance(found, UsageError) else _options_of(argv)
        report(found, "--json" in argv, options=options)
        return status_of(found)


def _by_ctrl_c(error: BaseException) -> bool:
    """Whether an error came of Ctrl-C.

    In the middle of ``threading.Condition.wait``, and so of the start of a thread, Python makes a
    RuntimeError of it ("release unlocked lock").  A chain of errors may lead back to itself.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            return True
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return False


def _run(argv: Sequence[str]) -> int:
    as_json = "--json" in argv
    try:
        code = app(_with_own_help(arranged(list(argv))), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Broken pipe: the reader has closed it.  The interpreter's own flush at exit must not
        # complain about it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or ())
        report(UsageError(f"there is no place for {words!r} here"), as_json, hint=_help_of(argv))
        return EXIT_USAGE
    except CycloptsError as error:
        report(error, as_json, hint=_help_of(argv))
        return EXIT_USAGE
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return code if isinstance(code, int) else 0


def arranged(tokens: list[str]) -> list[str]:
    """The words in the order in which the commands take them."""
    leading: list[str] = []
    while tokens and tokens[0].partition("=")[0] in (*VALUED, *FLAGS):
        count = 2 if tokens[0] in VALUED else 1
        if len(tokens) < count:
            raise UsageError(f"{tokens[0]} needs a value")
        leading, tokens = leading + tokens[:count], tokens[count:]
    tokens = _dash_last(tokens)
    if not tokens or not leading:
        return tokens
    chain, _, rest = app.parse_commands(tokens)
    return [*chain, *leading, *rest] if chain else tokens


def _dash_last(tokens: list[str]) -> list[str]:
    """A lone - (the input) is a name, though it looks like an option."""
    if "--" in tokens or "-" not in tokens[1:]:
        return tokens
    at = tokens.index("-", 1)
    before = tokens[at - 1]
    if before.startswith("-") and before not in INPUT_FLAGS:
        return tokens
    return [*tokens[:at], *tokens[at + 1 :], "--", "-"]


def _with_own_help(tokens: list[str]) -> list[str]:
    """The words, after the named command's own help text was put in place of its summary line."""
    _, apps, _ = app.parse_commands(tokens)
    for each in apps[1:]:
        if each.default_command is not None and each.default_command.__doc__:
            each.help = None
    return tokens


def _options_of(argv: Sequence[str]) -> dict[str, str]:
    """The options of the command that was given, by the names that the program has for them."""
    _, apps, _ = app.parse_commands(arranged(list(argv)))
    if apps[-1].default_command is None:
        return {}
    found = apps[-1].assemble_argument_collection()
    return {each.field_info.name: each.name for each in found if each.name.startswith("--")}


def _help_of(argv: Sequence[str]) -> str:
    """Where to look when a command was misspelt."""
    chain, _, _ = app.parse_commands(arranged(list(argv)))
    return f"(see {' '.join(['headrace', *chain])} --help)"
