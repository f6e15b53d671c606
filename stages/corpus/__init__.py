"""Raw text to clean, deduplicated, filtered, tokenized shards."""
