"""Documentation inside installed Python packages, read with `ast`: no package is ever imported."""

from __future__ import annotations

import ast
import base64
import gc
import hashlib
import inspect
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from trainwright.stages.contract import DataError

STDLIB = "stdlib"
"""Name under which a recipe asks for Python's own standard library."""

TOPICS = "pydoc_data/topics.py"
"""The language reference's texts that `help()` shows, as one dictionary in the standard library."""

SKIPPED_FOLDERS = frozenset(
    ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3")
)
"""Folders never read: tests have no documentation, and the standard library's holds other packages."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a package: where it is, and what it must contain (`sha256` in hex)."""

    package: str
    relative: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Package:
    """An installed distribution, or the standard library."""

    name: str
    version: str
    licence: str
    files: tuple[SourceFile, ...]

    @property
    def digest(self) -> str:
        """sha256 over name, version, Python's minor version and every source file's digest.

        Python's version counts because the grammar that reads the files does.
        """
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        lines = [f"{self.name}\0{self.version}\0{python}"]
        lines += [f"{f.relative}\0{f.sha256}" for f in self.files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Docstring:
    """A docstring as `inspect.cleandoc` leaves it, and what it documents."""

    package: str
    module: str
    name: str
    kind: str
    """module, class, function or topic"""
    signature: str
    """`name(arguments)` of a function, else empty"""
    text: str


@dataclass(frozen=True)
class Harvest:
    """What one file gave: its docstrings, or why it gave none."""

    docstrings: tuple[Docstring, ...]
    error: str | None = None


def find_package(name: str) -> Package:
    """The package as installed; `DataError` if it is not there or does not list its files."""
    if name == STDLIB:
        return _stdlib()
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise DataError(
            f"corpus source: the package {name!r} is not installed; install it or take it out of "
            "the recipe's packages"
        ) from None
    files = tuple(sorted(_recorded_files(name, found), key=lambda f: f.relative))
    if not files:
        raise DataError(
            f"corpus source: the package {name!r} records no Python file of its own with a digest "
            "(an editable or a non-Python install?); install it as a wheel or take it out"
        )
    return Package(name, found.version, _licence(found), files)


def _recorded_files(name: str, found: Distribution) -> Iterator[SourceFile]:
    root = Path(str(found.locate_file("")))
    for line in (found.read_text("RECORD") or "").splitlines():
        relative, _, rest = line.partition(",")
        digest, _, _ = rest.partition(",")
        if not relative.endswith(".py") or not digest.startswith("sha256=") or '"' in relative:
            continue
        if _wanted(relative):
            yield SourceFile(name, relative, str(root / relative), _hex(digest[7:]))


def _wanted(relative: str) -> bool:
    parts = PurePosixPath(relative).parts
    return ".." not in parts and SKIPPED_FOLDERS.isdisjoint(parts[:-1])


def _hex(urlsafe: str) -> str:
    return base64.urlsafe_b64decode(urlsafe + "=" * (-len(urlsafe) % 4)).hex()


def _stdlib() -> Package:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if _wanted(relative) and not path.name.startswith("_sysconfigdata"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            files.append(SourceFile(STDLIB, relative, str(path), digest))
    return Package(
        STDLIB, sys.version.split()[0], "PSF-2.0", tuple(sorted(files, key=lambda f: f.relative))
    )


def _licence(found: Distribution) -> str:
    """The licence a distribution states: SPDX expression, else classifiers, else free text."""
    if expression := _field(found, "License-Expression"):
        return expression
    classifiers = found.metadata.get_all("Classifier") or []
    stated = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    if stated:
        return "; ".join(sorted(stated))
    lines = _field(found, "License").strip().splitlines()
    return lines[0][:80] if lines else "not stated"


def _field(found: Distribution, name: str) -> str:
    return str((found.metadata.get_all(name) or [""])[0])


def harvest(file: SourceFile) -> Harvest:
    """The docstrings of a file, in source order.

    A file that is not what the package recorded, not decodable or not this Python's grammar gives
    none, and says so in `error`.
    """
    try:
        data = Path(file.path).read_bytes()
    except OSError as error:
        return Harvest((), f"unreadable ({error.strerror})")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        return Harvest((), "changed since it was installed")
    try:
        tree = _parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Harvest((), f"not parsed ({type(error).__name__})")
    if file.package == STDLIB and file.relative == TOPICS:
        return Harvest(tuple(_topics(tree)))
    return Harvest(tuple(_docstrings(file.package, _module_name(file.relative), tree)))


def _parse(data: bytes) -> ast.Module:
    # The collector walks the growing tree again and again, and a tree has no cycles to find:
    # parsing scipy took 1.0 s of CPU with it and 0.7 s without.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data)
    finally:
        if collecting:
            gc.enable()


def _module_name(relative: str) -> str:
    parts = list(PurePosixPath(relative).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts.pop()
    return ".".join(parts)


def _topics(tree: ast.Module) -> Iterator[Docstring]:
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        for name, text in sorted(ast.literal_eval(node.value).items()):
            yield Docstring(STDLIB, "pydoc_data.topics", name, "topic", "", inspect.cleandoc(text))


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _docstrings(package: str, module: str, tree: ast.Module) -> Iterator[Docstring]:
    stack: list[tuple[str, Documented]] = [("", tree)]
    while stack:
        name, node = stack.pop()
        text = ast.get_docstring(node, clean=True)
        if text and text.strip():
            full = f"{module}.{name}" if name else module
            yield Docstring(package, module, full, _kind(node), _signature(full, node), text)
        inner = [
            (f"{name}.{child.name}" if name else child.name, child) for child in _definitions(node)
        ]
        stack.extend(reversed(inner))


def _definitions(
    node: Documented,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions defined in a body, also below `if` and `try`; not inside functions."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    pending: list[ast.stmt] = list(reversed(node.body))
    while pending:
        statement = pending.pop()
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.If | ast.Try):
            pending.extend(reversed([*statement.body, *statement.orelse]))


def _kind(node: Documented) -> str:
    if isinstance(node, ast.Module):
        return "module"
    return "class" if isinstance(node, ast.ClassDef) else "function"


def _signature(full: str, node: Documented) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    arguments = node.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            rest.annotation = None
    return f"{full}({ast.unparse(arguments)})"
