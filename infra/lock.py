"""Renew requirements.lock from pyproject.toml: every dependency pinned, with the hashes of its files.

    python infra/lock.py [--upgrade]

torch is left out: it is installed first and alone (Makefile), since its builds differ by machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
_BLOCK = r"(?m)^{name}\b.*\n(?:    --hash=.*\n)*"


def main() -> None:
    """Compile, strip what must not be there, and replace the lock at once."""
    command = [
        sys.executable, "-m", "piptools", "compile", "--quiet", "--extra", "dev",
        "--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-emit-index-url",
        "--no-emit-find-links", "--no-header", "--no-annotate", *sys.argv[1:],
        "--output-file", "-", str(ROOT / "pyproject.toml"),
    ]  # fmt: skip
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    new = LOCK.with_suffix(".new")
    new.write_text(strip(text))
    new.replace(LOCK)


def strip(text: str) -> str:
    """Without torch, the project itself and pip-compile's remarks."""
    for name in ("torch==", "trainwright @"):
        text = re.sub(_BLOCK.replace(r"{name}\b", re.escape(name)), "", text)
    return re.sub(r"(?m)^(#.*)?\n", "", text)


if __name__ == "__main__":
    main()
