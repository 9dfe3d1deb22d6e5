"""Snapshots, origin cursors and the markers between regions: pure."""
