"""Partitioned groups: an administrator decides, key to partition to member.

Pure: ``config`` holds the records and their rules, ``changes`` how they may change,
``distribution`` who gets which partition, ``names`` what is derived from a group's name.  ``pins``
are the rules that the catalog applies in its transactions; ``membership`` is the instance of a
member, over its ``partitions``, with the events and effects of ``messages``; ``status`` is what an
administrator sees.

At work: ``lifecycle`` and ``admin`` are the administration, ``units`` and ``ownership`` the
transactions of instances, ``work_queue`` the filling of an elastic group's queue.  ``member`` is
an instance in a process, with the consumer of what it owns; the ``hub`` is what all of a process
share.  ``record``, ``explain`` and ``lag`` tell what is going on.
"""
