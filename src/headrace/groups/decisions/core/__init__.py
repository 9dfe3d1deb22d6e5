"""The record itself, and what follows from ended leases: pure."""
