"""Runtimes: they connect the cores to the log, the catalog and the clock."""
