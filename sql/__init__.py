"""DuckDB statements longer than a line, one file each, named for the question it answers."""

from importlib.resources import files


def load(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return (files(__name__) / f"{name}.sql").read_text(encoding="utf-8")
