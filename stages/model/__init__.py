"""Tokenizer, configuration, loading and saving: shared by the stages that touch weights."""
