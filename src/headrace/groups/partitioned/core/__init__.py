"""The rules of partitioned groups, and an instance of a member as a state machine: pure."""
