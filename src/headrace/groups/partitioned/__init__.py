"""Partitioned groups: an administrator decides, key to partition to member.

``core/`` is pure: ``config`` holds the records and their rules, ``changes`` how they may change,
``distribution`` who gets which partition.  ``pins`` are the rules that the catalog applies in its
transactions; ``membership`` is the instance of a member, over its ``partitions``, with the events
and effects of ``messages``; ``status`` is what an administrator sees.

``runtime/`` is at work: ``member`` is an instance in a process, with the consumer of what it owns;
the ``hub`` is what all of a process share.  ``units`` and ``ownership`` are the transactions of
instances, ``work_queue`` is the filling of an elastic group's queue, ``record`` what was decided.

What administers groups stands here: ``lifecycle``, ``admin``, and ``explain`` and ``lag``, which
tell what is going on; ``names`` is what is derived from a group's name.
"""
