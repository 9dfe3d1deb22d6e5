"""Leader, borrower and what stands between them, as state machines: pure."""
