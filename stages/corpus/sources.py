"""From the recipe's sources to units of work, and to digests of what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainwright.stages.artifact import file_sha256
from trainwright.stages.contract import DataError
from trainwright.stages.corpus.files import DataFile, format_of, matching
from trainwright.stages.corpus.params import CorpusParams, Source
from trainwright.stages.corpus.python_docs import Package, SourceFile, find_package

FILES_A_UNIT = 100
"""Source files of a package that one worker reads at a time."""


@dataclass(frozen=True)
class Unit:
    """What one worker reads at a time: some files of a package, or one data file.

    `part` is the package's name or empty; `digest` covers the bytes of the files.
    """

    source: Source
    part: str
    licence: str
    digest: str
    modules: tuple[SourceFile, ...] = ()
    data: DataFile | None = None


@dataclass(frozen=True)
class Resolved:
    """What the sources are at this moment: units of work, and digests by name for the fingerprint."""

    units: tuple[Unit, ...]
    digests: dict[str, str]


def resolve(params: CorpusParams) -> Resolved:
    """Find every source; `DataError` for one that is not there."""
    units: list[Unit] = []
    digests: dict[str, str] = {}
    for source in params.sources:
        if source.kind == "python-docs":
            for name in source.packages:
                package = find_package(name)
                digests[f"{source.name}/{name}"] = package.digest
                units.extend(_package_units(source, package))
        else:
            found = [_data_file(source, path) for path in matching(source.name, source.paths)]
            # Sorted digests: neither a file's name nor its place among the others counts.
            contents = sorted(f"{f.format}\0{f.compression}\0{f.sha256}" for f in found)
            digests[source.name] = hashlib.sha256("\n".join(contents).encode()).hexdigest()
            units.extend(
                Unit(source, "", source.licence or "not stated", f.sha256, data=f) for f in found
            )
    if params.tokenizer.folder is not None:
        digests["tokenizer"] = file_sha256(tokenizer_file(params.tokenizer.folder))
    return Resolved(tuple(units), digests)


def tokenizer_file(folder: str) -> Path:
    """The tokenizer.json of a given folder."""
    path = Path(folder).expanduser() / "tokenizer.json"
    if not path.is_file():
        raise DataError(
            f"tokenizer.folder: there is no file {str(path)!r}; give a folder that holds a "
            "tokenizer.json, or leave it empty to train one"
        )
    return path


def _package_units(source: Source, package: Package) -> Iterator[Unit]:
    licence = source.licence or package.licence
    for start in range(0, len(package.files), FILES_A_UNIT):
        files = package.files[start : start + FILES_A_UNIT]
        lines = "\n".join(f"{f.relative}\0{f.sha256}" for f in files)
        digest = hashlib.sha256(f"{package.digest}\0{lines}".encode()).hexdigest()
        yield Unit(source, package.name, licence, digest, modules=files)


def _data_file(source: Source, path: Path) -> DataFile:
    form, compression = format_of(source.name, path)
    return DataFile(str(path), form, compression, file_sha256(path))
