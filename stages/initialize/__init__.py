"""A Hugging Face configuration to initial weights."""
