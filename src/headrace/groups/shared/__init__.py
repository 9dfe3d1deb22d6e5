"""Shared groups: a leader grants and revokes units to the borrowers of sessions.

All of it is pure: ``(state, event, now) -> effects``.  ``borrower`` and ``leader`` are the two
ends of the protocol in ``messages``; ``agent`` and ``handler`` stand between a borrower and its
session; ``registry`` finds or claims the leader of a group; ``balance`` decides who gets what.
"""
