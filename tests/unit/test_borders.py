"""Arrows point one way, and a command line answers at once."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "deepspeed", "transformers", "duckdb", "mlflow", "prefect", "boto3", "peft")
FLOW_MAY_READ = (
    "artifact", "contract", "fingerprint", "gc", "lease", "progress", "registry", "settings",
    "store", "watch",
)  # fmt: skip


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("folder", ["flows", "stages", "sql", "tests"])
def test_nothing_imports_the_top_level_folders_by_their_bare_names(folder: str) -> None:
    for path in sources(folder):
        bare = [n for n in imports(path) if n.split(".")[0] in ("flows", "stages", "sql")]
        assert not bare, f"{path.relative_to(ROOT)} imports {bare}: write trainwright.{bare[0]}"


def test_stages_never_import_flows() -> None:
    for path in sources("stages"):
        found = [n for n in imports(path) if n.startswith("trainwright.flows")]
        assert not found, f"{path.relative_to(ROOT)} imports {found}"


def test_flows_know_stages_by_contract_store_and_parameters_alone() -> None:
    for path in sources("flows"):
        for name in imports(path):
            parts = name.split(".")
            if parts[:2] != ["trainwright", "stages"] or len(parts) == 2:
                continue
            assert parts[2] in FLOW_MAY_READ or parts[3:] == ["params"], (
                f"{path.relative_to(ROOT)} imports {name}"
            )


def test_parameters_need_pydantic_and_the_contract_alone() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic"}
    for path in (ROOT / "stages").glob("*/params.py"):
        for name in imports(path):
            assert name.split(".")[0] in allowed or name == "trainwright.stages.contract", (
                f"{path.relative_to(ROOT)} imports {name}"
            )


def test_the_corpus_stage_never_imports_torch() -> None:
    for path in sources("stages/corpus"):
        assert not {n.split(".")[0] for n in imports(path)} & {"torch", "transformers"}, path


@pytest.mark.parametrize(
    "program",
    [
        "from trainwright.flows.cli import main; main(['--help'], standalone_mode=False)",
        "from trainwright.flows.cli import main; main(['run', '--help'], standalone_mode=False)",
        "from trainwright.stages import __main__, registry",
        "import trainwright.flows.recipe",
    ],
)
def test_nothing_heavy_is_loaded_to_answer_help(program: str) -> None:
    check = f"{program}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout.splitlines()[-1] == "[]"
