"""``headrace epoch``: streams that are published by epochs.

Commands are named here and loaded when used.
"""

from __future__ import annotations

from cyclopts import App

app = App(
    name="epoch",
    help="Epochs: publish them, read whole ones, see who holds them back.\n\n"
    "What lies before a frontier is complete; what lies at or after it is still to come.",
    help_epilogue="A time is 17, or 3,0 where a stream has pairs; a frontier of several times "
    "stands in quotes: '3,0 0,4'.",
)

_COMMANDS = (
    ("publish", "epoch_publish:publish", "Publish rows of an epoch, and say what is complete."),
    ("advance", "epoch_publish:advance", "Say that all before a time is complete."),
    ("close", "epoch_publish:close", "Say that nothing more comes from a publisher."),
    ("read", "epoch_read:read", "Read whole epochs, those that are there or as they come."),
    ("status", "epoch_looks:status", "Show what is complete, what is open, and who is behind."),
    ("explain", "epoch_looks:explain", "Say who holds the frontier back, and what to do."),
    ("decisions", "epoch_looks:decisions", "Show who came, left, was lost or replaced."),
    ("rollback", "epoch_admin:rollback", "Do without a publisher; take its unfinished rows back."),
    ("release", "epoch_admin:release", "Do without a publisher; what it left counts."),
    ("abort", "epoch_admin:abort", "End a stream as aborted, for good."),
    ("subscriptions", "epoch_looks:subscriptions", "List named subscriptions."),
    ("forget", "epoch_admin:forget", "Forget a named subscription."),
)
for _name, _home, _help in _COMMANDS:
    app.command(f"headrace.cli.{_home}", name=_name, help=_help)
