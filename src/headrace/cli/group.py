"""``headrace group``: groups of members that share a stream, of every kind.

Commands are named here and loaded when used: a look at groups loads nothing of what runs them.
"""

from __future__ import annotations

from cyclopts import App

app = App(
    name="group",
    help="Groups: create them, see who consumes what and why, and join them.",
    help_epilogue="",
)

_COMMANDS = (
    ("ls", "group_looks:ls", "List all groups: members, lag, and what is wanting."),
    ("info", "group_looks:info", "Show a group: its members, its units and its lag."),
    ("explain", "group_looks:explain", "Say what a group is doing and why."),
    ("lag", "group_looks:lag", "Show how far a group is behind, or all of them."),
    ("decisions", "group_looks:decisions", "Show the latest decisions about a group."),
    ("members", "group_admin:members_app", "Show the members of a group; add or drop some."),
    ("static", "group_partitioned:static", "Groups whose members are fixed."),
    ("elastic", "group_partitioned:elastic", "Groups whose members come and go."),
    ("shared", "group_shared:app", "Groups that share what a filter matches."),
    ("mapping", "group_admin:mapping_app", "Map partitions of an elastic group by hand, or not."),
    ("active", "group_admin:active", "Show which members are active, and who is missing."),
    ("step-down", "group_admin:step_down", "Have an active instance give way to a standby."),
    ("partitions", "group_admin:partitions", "Print the partitions that a member is given."),
    ("seek", "group_seek:seek", "Put a group elsewhere in what it reads."),
    ("dead", "group_dead:app", "Dead letters of a group: list, show, put back and discard them."),
    ("join", "group_join:join", "Consume events as a member of a static or elastic group."),
)
for _name, _home, _help in _COMMANDS:
    app.command(f"headrace.cli.{_home}", name=_name, help=_help)
