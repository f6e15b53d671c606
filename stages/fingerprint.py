"""What an output is a function of, as one hash; and what moved between two of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trainwright.stages.contract import ArtifactRef, Params


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes. NaN is refused."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def sha256_of(value: Any) -> str:
    """The sha256 of a JSON value in canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def identity(
    program: str,
    version: int,
    params: Params,
    inputs: dict[str, ArtifactRef],
    external: dict[str, str],
) -> dict[str, Any]:
    """What the output depends on: program, its version, parameters that bear on it, input digests."""
    return {
        "program": program,
        "version": version,
        "params": params.identity(),
        "inputs": {name: ref.digest for name, ref in inputs.items()},
        "external": external,
    }


def fingerprint(
    program: str,
    version: int,
    params: Params,
    inputs: dict[str, ArtifactRef],
    external: dict[str, str],
) -> str:
    """sha256 of `identity(...)`."""
    return sha256_of(identity(program, version, params, inputs, external))


def drift(old: Any, new: Any, path: str = "") -> list[str]:
    """The fields that differ between two JSON values, each as `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in sorted({*old, *new}):
            where = f"{path}.{key}" if path else str(key)
            if key not in old:
                lines.append(f"{where}: (absent) -> {_short(new[key])}")
            elif key not in new:
                lines.append(f"{where}: {_short(old[key])} -> (absent)")
            else:
                lines.extend(drift(old[key], new[key], where))
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for index, (a, b) in enumerate(zip(old, new, strict=True))
            for line in drift(a, b, f"{path}[{index}]")
        ]
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= 60 else text[:57] + "..."
