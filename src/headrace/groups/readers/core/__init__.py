"""The state of a reader group, who may change it how, and a reader: pure."""
