"""``headrace reader``: reader groups, whose readers divide segments among themselves.

Commands are named here and loaded when used: a look at groups loads nothing of what runs them.
"""

from __future__ import annotations

from cyclopts import App

app = App(
    name="reader",
    help="Reader groups: create them, read, take checkpoints and go back to them.",
    help_epilogue="",
)

_COMMANDS = (
    ("create", "reader_admin:create", "Create a reader group."),
    ("read", "reader_read:read", "Read as a reader of a group until Ctrl-C, or to its end."),
    ("ls", "reader_looks:ls", "List the reader groups."),
    ("info", "reader_looks:info", "Show who reads what, what waits, and the checkpoints."),
    ("lag", "reader_looks:lag", "Show how far a group is behind."),
    ("explain", "reader_looks:explain", "Say what a group is doing and why."),
    ("checkpoint", "reader_places:checkpoint", "Take a checkpoint of a group, and print it."),
    ("cut", "reader_places:cut", "Print where all readers of a group are now."),
    ("reset", "reader_places:reset", "Put a group back, or forward."),
    ("offline", "reader_admin:offline", "Put a reader offline; others read what it had."),
    ("configure", "reader_admin:configure", "Change what a group keeps, and how."),
    ("streams", "reader_admin:streams_app", "Let a reader group read more streams, or fewer."),
    ("rm", "reader_admin:rm", "Delete a reader group."),
)
for _name, _home, _help in _COMMANDS:
    app.command(f"headrace.cli.{_home}", name=_name, help=_help)
