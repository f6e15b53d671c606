"""Trainwright: raw text to an aligned 8-bit language model."""

__version__ = "0.1.0"
