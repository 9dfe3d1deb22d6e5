"""Times, frontiers, publisher and subscriber of epochs: pure."""
