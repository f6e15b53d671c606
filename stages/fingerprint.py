"""What an output is a function of, as one hash; and what moved between two of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from trainwright.stages.contract import ArtifactRef, Params

_SHOWN = 60
"""Characters of a value that a line of `drift` shows."""


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes. `ValueError` for NaN."""
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
    """The fields that differ between two JSON values, each as `path: old -> new`.

    Two values differ when their fingerprints would: 1 and 1.0 do, the order of keys does not.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return _drift_of_dicts(old, new, path)
    if isinstance(old, list) and isinstance(new, list):
        return _drift_of_lists(old, new, path)
    if canonical(old) == canonical(new):
        return []
    return [f"{path}: {' -> '.join(_pair(old, new))}"]


def _drift_of_dicts(old: dict[str, Any], new: dict[str, Any], path: str) -> list[str]:
    lines: list[str] = []
    for key in sorted({*old, *new}):
        where = f"{path}.{key}" if path else str(key)
        if key not in old:
            lines.append(f"{where}: (absent) -> {_short(_text(new[key]))}")
        elif key not in new:
            lines.append(f"{where}: {_short(_text(old[key]))} -> (absent)")
        else:
            lines.extend(drift(old[key], new[key], where))
    return lines


def _drift_of_lists(old: list[Any], new: list[Any], path: str) -> list[str]:
    lines = [
        line
        for i, (a, b) in enumerate(zip(old, new, strict=False))
        for line in drift(a, b, f"{path}[{i}]")
    ]
    shared = min(len(old), len(new))
    lines += [f"{path}[{i}]: {_short(_text(old[i]))} -> (absent)" for i in range(shared, len(old))]
    lines += [f"{path}[{i}]: (absent) -> {_short(_text(new[i]))}" for i in range(shared, len(new))]
    return lines


def _text(value: Any) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    )


def _short(text: str) -> str:
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _pair(old: Any, new: Any) -> tuple[str, str]:
    """Both as text, shortened so that what differs is seen."""
    a, b = _text(old), _text(new)
    if a == b:
        return json.dumps(old), json.dumps(new)
    if _short(a) != _short(b):
        return _short(a), _short(b)
    shared = min(len(a), len(b))
    same = next((i for i in range(shared) if a[i] != b[i]), shared)
    start = max(0, same - 20)
    return "..." + _short(a[start:]), "..." + _short(b[start:])
