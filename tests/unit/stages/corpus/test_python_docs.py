"""Documentation is read from source, never imported; what cannot be read is said, not raised."""

import base64
import hashlib
import os
import sys
from pathlib import Path

import pytest

from trainwright.stages.contract import DataError
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.python_docs import STDLIB, find_package, harvest
from trainwright.stages.corpus.sources import resolve

MODULE = '''"""What the module is."""
raise SystemExit("imported")

class Box:
    """A box."""

    def open(self, key, *, force=False) -> int:
        """Open it."""

        def hidden():
            """Inside a function: no documentation of the package."""

if True:
    async def later(x: int, *rest, **more):
        """After the class."""
'''


def install(folder: Path, name: str, files: dict[str, str], version: str = "1.0") -> None:
    """Lay a distribution down as pip does: files, METADATA, RECORD."""
    lines = []
    for relative, text in files.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        )
        lines.append(f"{relative},sha256={digest},{len(text)}")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    )
    (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_docstrings_come_in_source_order_with_names_and_signatures(site: Path) -> None:
    install(site, "twdemo", {"twdemo/box.py": MODULE})
    (file,) = find_package("twdemo").files
    found = harvest(file)
    assert found.error is None
    assert [(d.name, d.kind, d.signature, d.text) for d in found.docstrings] == [
        ("twdemo.box", "module", "", "What the module is."),
        ("twdemo.box.Box", "class", "", "A box."),
        (
            "twdemo.box.Box.open",
            "function",
            "twdemo.box.Box.open(self, key, *, force=False)",
            "Open it.",
        ),
        ("twdemo.box.later", "function", "twdemo.box.later(x, *rest, **more)", "After the class."),
    ]
    assert "twdemo" not in sys.modules


def test_tests_and_foreign_files_are_left_out(site: Path) -> None:
    files = {"twdemo/a.py": "", "twdemo/tests/b.py": "", "twdemo/data.txt": "x"}
    install(site, "twdemo", files)
    assert [f.relative for f in find_package("twdemo").files] == ["twdemo/a.py"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"def broken(:\n", "not parsed (SyntaxError)"),
        (b"'''\xff\xfe'''\n", "not parsed (SyntaxError)"),
        (b"x = 1\x00\n", "not parsed"),
    ],
)
def test_what_is_not_python_is_said(site: Path, content: bytes, reason: str) -> None:
    install(site, "twdemo", {"twdemo/a.py": ""})
    path = site / "twdemo/a.py"
    path.write_bytes(content)
    digest = hashlib.sha256(content).digest()
    encoded = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    (site / "twdemo-1.0.dist-info/RECORD").write_text(f"twdemo/a.py,sha256={encoded},1")
    found = harvest(find_package("twdemo").files[0])
    assert found.docstrings == ()
    assert found.error is not None and found.error.startswith(reason)


def test_a_file_changed_since_installation_is_said(site: Path) -> None:
    install(site, "twdemo", {"twdemo/a.py": '"""Old."""'})
    (site / "twdemo/a.py").write_text('"""New."""')
    assert harvest(find_package("twdemo").files[0]).error == "changed since it was installed"


def test_a_file_that_is_gone_is_said(site: Path) -> None:
    install(site, "twdemo", {"twdemo/a.py": ""})
    (site / "twdemo/a.py").unlink()
    error = harvest(find_package("twdemo").files[0]).error
    assert error == f"unreadable ({os.strerror(2)})"


def test_a_package_that_is_not_there_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        DataError, match="'no-such-package' is not installed; install it or take it out"
    ):
        find_package("no-such-package")


def test_a_package_without_recorded_files_is_refused(site: Path) -> None:
    install(site, "twempty", {})
    with pytest.raises(DataError, match="records no Python file"):
        find_package("twempty")


def recipe() -> CorpusParams:
    return CorpusParams.model_validate(
        {
            "sources": [
                {"name": "a", "kind": "python-docs", "packages": ["twdemo"]},
                {"name": "h", "kind": "python-docs", "packages": ["twheld"], "role": "heldout"},
            ],
            "perplexity": {"enabled": False},
        }
    )


def test_identity_follows_the_named_packages_alone(site: Path) -> None:
    install(site, "twdemo", {"twdemo/a.py": MODULE})
    install(site, "twheld", {"twheld.py": MODULE})
    before = resolve(recipe()).digests
    assert set(before) == {"a/twdemo", "h/twheld"}
    install(site, "unrelated", {"unrelated.py": MODULE})
    assert resolve(recipe()).digests == before
    for path in (site / "twdemo-1.0.dist-info").iterdir():
        path.unlink()
    (site / "twdemo-1.0.dist-info").rmdir()
    install(site, "twdemo", {"twdemo/a.py": MODULE + "\n"})
    after = resolve(recipe()).digests
    assert after["a/twdemo"] != before["a/twdemo"]
    assert after["h/twheld"] == before["h/twheld"]


def test_the_standard_library_gives_docstrings_and_topics() -> None:
    package = find_package(STDLIB)
    by_name = {file.relative: file for file in package.files}
    assert not any("/tests/" in name or name.startswith("test/") for name in by_name)
    assert package.licence == "PSF-2.0"
    topics = harvest(by_name["pydoc_data/topics.py"]).docstrings
    assert {"with", "for", "lambda"} <= {topic.name for topic in topics}
    dumps = [d for d in harvest(by_name["json/__init__.py"]).docstrings if d.name == "json.dumps"]
    assert dumps[0].text.startswith("Serialize ``obj`` to a JSON formatted ``str``.")
    assert dumps[0].signature.startswith("json.dumps(obj, *, skipkeys=False,")


def test_the_licence_is_the_distributions_own(site: Path) -> None:
    install(site, "twdemo", {"twdemo/a.py": ""})
    assert find_package("twdemo").licence == "MIT"
