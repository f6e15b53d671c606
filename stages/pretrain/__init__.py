"""Distributed pretraining with DeepSpeed."""
