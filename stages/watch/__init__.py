"""Metrics, heartbeats and process watching."""
