"""Tests of the epoch runtimes."""
