"""Regions: a group's progress follows its consumers to another region.

Two ways, both as pure cores.  *Origin cursors* (the default) say what was acked by where an event
comes from, which means the same in every region: :mod:`headrace.regions.core.cursor`.  *Snapshots*
relate positions of one region to positions of the others through markers in line with the
events: :mod:`headrace.regions.core.controller`.  :mod:`headrace.regions.core.segment` wires the
cores of one segment together.
"""
