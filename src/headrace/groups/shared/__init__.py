"""Shared groups: a leader grants and revokes units to the borrowers of sessions.

``core/`` is pure, ``(state, event, now) -> effects``.  ``borrower`` and ``leader`` are the two ends
of the protocol in ``messages``; ``agent`` and ``handler`` stand between a borrower and its session;
``registry`` finds or claims the leader of a group; ``balance`` decides who gets what.

``runtime/`` connects it to catalog, network and clock.  ``peer`` is what a process has one of, with
``leading`` for each group it leads and ``transport`` between peers; ``borrowing`` and ``private``
are the two sides of a ``session``; ``state`` and ``listing`` are what a leader loads and stores.

What administers groups stands here: ``admin`` looks at them from outside; ``properties``,
``sessions`` and ``starts`` are what is declared, in the catalog.
"""
