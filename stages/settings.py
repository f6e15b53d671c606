"""Where things live: read from the environment, with defaults that need nothing beside the product.

- TRAINWRIGHT_HOME: state of this machine (runs, logs, scratch, databases); default: the nearest
  `.trainwright` upwards, else `./.trainwright`.
- TRAINWRIGHT_STORE: artifact store, `file://` or `s3://bucket/prefix`; default: `store` in the home.
- MLFLOW_TRACKING_URI: default: the running stack's server, else `mlflow.db` (SQLite) in the home.
- PREFECT_API_URL: default: the running stack's server, else one that lives as long as the command.
- TORCH_EXTENSIONS_DIR: compiled DeepSpeed ops; default: in the virtual environment.
- AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and so on: the object store, as boto3 reads them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.stages.contract import UsageError


@dataclass(frozen=True)
class Settings:
    """Resolved places; see the module's docstring."""

    home: Path
    store: str
    mlflow_uri: str
    prefect_api: str | None
    torch_extensions: Path

    @property
    def work(self) -> Path:
        """Scratch and snapshots, one folder a fingerprint."""
        return self.home / "work"

    @property
    def logs(self) -> Path:
        """Logs of runs, one folder a run."""
        return self.home / "logs"

    @property
    def cache(self) -> Path:
        """Local copies of remote artifacts."""
        return self.home / "cache"


_NOT_IN_A_HOME = "?*[%"
"""SQLite's addresses end at `?` and decode `%`; DuckDB reads `?`, `*` and `[` as patterns."""


def without_credentials(text: object) -> str:
    """A text for a record, a log or a page: URLs in it lose the user and password before the host."""
    return re.sub(r"(?<=://)[^/\s?#]*@", "", str(text))


def find_home() -> Path:
    """TRAINWRIGHT_HOME, else the nearest `.trainwright` upwards, else `./.trainwright`.

    Refused where a database would take a character of the path for something else: it would then
    write outside the home, or read what it must not.
    """
    home = _find_home()
    if found := [c for c in str(home) if c in _NOT_IN_A_HOME or not c.isprintable()]:
        raise UsageError(
            f"the home {str(home)!r} has the character {found[0]!r} in its path, which databases do "
            "not take for a letter: name another folder in TRAINWRIGHT_HOME"
        )
    return home


def _find_home() -> Path:
    if given := os.environ.get("TRAINWRIGHT_HOME"):
        try:
            return Path(given).expanduser().resolve()
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"TRAINWRIGHT_HOME is {given!r}: {error}") from None
    here = Path.cwd().resolve()
    for folder in (here, *here.parents):
        if (folder / ".trainwright").is_dir():
            return folder / ".trainwright"
    return here / ".trainwright"


def settings() -> Settings:
    """The settings as they are now."""
    home = find_home()
    stack = _stack(home)
    return Settings(
        home=home,
        store=os.environ.get("TRAINWRIGHT_STORE") or f"file://{home / 'store'}",
        mlflow_uri=os.environ.get("MLFLOW_TRACKING_URI")
        or stack.get("mlflow")
        or f"sqlite:///{home / 'mlflow.db'}",
        prefect_api=os.environ.get("PREFECT_API_URL") or stack.get("prefect"),
        torch_extensions=_torch_extensions(home),
    )


def _stack(home: Path) -> dict[str, str]:
    """URLs of the stack that `trainwright up` started: of those servers whose process still lives.

    After a crash or a reboot the file is still there; its dead addresses must not be used.
    """
    try:
        state = json.loads((home / "stack.json").read_text())
        servers = {"prefect": "prefect", "prefect_ui": "prefect", "mlflow": "mlflow"}
        return {
            name: str(url)
            for name, url in state["urls"].items()
            if _lives(state["processes"][servers[name]])
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _lives(process: dict[str, Any]) -> bool:
    """Whether this very process lives, not another one that was given its pid."""
    from trainwright.stages.lease import boot_id, process_started

    started = process_started(int(process["pid"])) if process["boot"] == boot_id() else None
    return started is not None and abs(started - float(process["started"])) < 1.0


def _torch_extensions(home: Path) -> Path:
    """A folder of our own for DeepSpeed's compiled ops: in the virtual environment if writable.

    The default, ~/.cache, is shared between environments; a build killed there leaves a lock on
    which every later start hangs.
    """
    if given := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(given)
    prefix = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(prefix, os.W_OK):
        return prefix / "share" / "trainwright" / "torch_extensions"
    return home / "torch_extensions"
