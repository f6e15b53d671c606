"""What can be said of a model folder before anything of it is loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Header = dict[str, dict[str, Any]]
"""Of a safetensors file: name -> {"dtype", "shape", "data_offsets"}."""

INDEX = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000


def config_faults(folder: Path) -> list[str]:
    """What is wrong with config.json; empty if nothing is."""
    path = folder / "config.json"
    if not path.is_file():
        return ["config.json is missing"]
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"config.json cannot be read: {error}"]
    if not isinstance(config, dict) or not config.get("model_type"):
        return ["config.json names no model_type"]
    return []


def weight_faults(folder: Path) -> list[str]:
    """What is wrong with the weight files: pickled, missing, cut off, not as the index says."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLED)
        if pickled:
            return [
                f"{pickled[0]} is pickled, which can run code when loaded: convert it to safetensors"
            ]
        return ["there is no .safetensors file"]
    faults, headers = [], {}
    for path in files:
        try:
            headers[path.name] = read_header(path)
        except ValueError as error:
            faults.append(f"{path.name} {error}")
    return faults or list(_index_faults(folder, headers))


_PICKLED = {".bin", ".pt", ".pth", ".pkl", ".ckpt"}


def _index_faults(folder: Path, headers: dict[str, Header]) -> Iterator[str]:
    if not (folder / INDEX).is_file():
        if "model.safetensors" not in headers:
            yield f"there is neither model.safetensors nor {INDEX}"
        return
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].items()
    except (OSError, ValueError, KeyError, AttributeError):
        yield f"{INDEX} has no weight_map"
        return
    for file in sorted({file for _, file in places} - set(headers)):
        yield f"{file} is missing, {INDEX} names it"
    for name, file in sorted(places):
        if file in headers and name not in headers[file]:
            yield f"{file} lacks the tensor {name}"


def read_header(path: Path) -> Header:
    """The header of a safetensors file; `ValueError` unless the file is exactly as long as it says.

    Format: 8 bytes little-endian length, that many bytes of JSON, the tensors' bytes without gaps.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise ValueError(f"is cut off: {size} bytes do not hold its header")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise ValueError("has a header that is not JSON") from None
    header.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != end:
        kind = "cut off" if size < end else "too long"
        raise ValueError(f"is {kind}: {size} bytes, its header says {end}")
    return dict(header)


def weight_bytes(folder: Path) -> int:
    """Size of the folder's weight files, in bytes."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def elements(folder: Path) -> int:
    """Numbers stored in the folder's weight files; a tied matrix counts once."""
    return sum(
        math.prod(entry["shape"])
        for path in folder.glob("*.safetensors")
        for entry in read_header(path).values()
    )


def tensors_of(folder: Path, dtype: str) -> int:
    """Tensors of a type (as safetensors names it: `I8`, `F32`) in the weight files."""
    return sum(
        entry["dtype"] == dtype
        for path in folder.glob("*.safetensors")
        for entry in read_header(path).values()
    )
