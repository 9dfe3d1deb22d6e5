"""Shared groups: a leader grants and revokes units to the borrowers of sessions.

The cores are pure, ``(state, event, now) -> effects``.  ``borrower`` and ``leader`` are the two
ends of the protocol in ``messages``; ``agent`` and ``handler`` stand between a borrower and its
session; ``registry`` finds or claims the leader of a group; ``balance`` decides who gets what.

The rest connects them to catalog, network and clock.  ``peer`` is what a process has one of, with
``leading`` for each group it leads; ``frames`` says how messages travel; ``borrowing``
and ``private`` are the two sides of a ``session``; ``state``, ``starts``, ``listing``,
``properties``, ``sessions`` and ``directory`` are what stands in the catalog; ``admin`` looks at it
from outside.
"""
