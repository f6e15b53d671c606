"""Checkpoint validation: the gate that a model must pass."""
