"""Quantization-aware training to int8 and export."""
