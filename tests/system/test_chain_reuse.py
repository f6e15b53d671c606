"""What reruns when a parameter changes, and what does not."""

from __future__ import annotations

import json

import pytest

from workbench import TINY, Workbench

pytestmark = [pytest.mark.slow, pytest.mark.server]

# (arguments of `run`, steps that must run; all others must be reused)
CHANGES: list[tuple[list[str], set[str]]] = [
    ([], set()),
    (["--set", "pretrain.ranks=1", "--set", "pretrain.snapshot_every=7"], set()),
    (["--set", "corpus.workers=1", "--set", "align.threads=1"], set()),
    (["--set", "accept.max_size_ratio=0.99"], {"accept"}),
    (["--set", "quantize.steps=5"], {"quantize", "accept"}),
    (["--set", "align.ppo.kl.coefficient=0.2"], {"align", "quantize", "accept"}),
    (["--set", "initialize.seed=1", "--to", "initialize"], {"initialize"}),
    (["--set", "corpus.seed=1", "--to", "initialize"], {"corpus", "initialize"}),
    (["--set", "validate.heldout_tokens=3000", "--to", "validate"], {"validate"}),
    # The same bytes come out, so what follows is reused all the same.
    (["--force", "initialize", "--to", "pretrain"], {"initialize"}),
]


def test_a_change_reruns_what_depends_on_it_and_nothing_else(copy_of_trained: Workbench) -> None:
    table = {}
    for arguments, expected in CHANGES:
        run = copy_of_trained.run(*arguments)
        table[" ".join(arguments)] = (copy_of_trained.ran(run), expected)
    wrong = {change: ran for change, (ran, expected) in table.items() if ran != expected}
    assert not wrong, wrong


def test_plan_says_which_parameter_moved_and_runs_nothing(copy_of_trained: Workbench) -> None:
    before = copy_of_trained.runs.names()
    done = copy_of_trained.command("plan", TINY, "--set", "quantize.steps=5")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.split()}
    assert "reuse" in lines["align"]
    assert "params.steps: 4 -> 5" in lines["quantize"]
    assert "run?" in lines["accept"] and "depends on quantize" in lines["accept"]
    assert copy_of_trained.runs.names() == before


@pytest.mark.parametrize("fault", ["truncated", "flipped", "missing", "manifest"])
def test_a_damaged_artifact_is_not_reused_but_made_again(
    copy_of_trained: Workbench, fault: str
) -> None:
    record = copy_of_trained.steps()["initialize"]
    assert record.artifact is not None
    folder = copy_of_trained.home / "store" / record.artifact.uri.partition("/store/")[2]
    weights = next(folder.rglob("model.safetensors"))
    data = weights.read_bytes()
    match fault:
        case "truncated":
            weights.write_bytes(data[:-100])
        case "flipped":
            weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "missing":
            weights.unlink()
        case "manifest":
            path = folder / "manifest.json"
            changed = json.loads(path.read_text())
            changed["params"]["seed"] = 99
            path.write_text(json.dumps(changed))
    run = copy_of_trained.run("--to", "pretrain")
    again = copy_of_trained.steps(run)["initialize"]
    assert again.state == "completed" and again.artifact is not None
    assert again.artifact.digest == record.artifact.digest
    assert (again.why or "").startswith("damaged:")
    assert copy_of_trained.ran(run) == {"initialize"}


def test_from_refuses_to_run_what_lies_before_it(workbench: Workbench) -> None:
    done = workbench.command("run", TINY, "--from", "pretrain", "--to", "pretrain")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "may not execute it; start from it instead: --from corpus" in said


def test_an_existing_hugging_face_folder_is_gone_on_with(copy_of_trained: Workbench) -> None:
    record = copy_of_trained.steps()["pretrain"]
    assert record.artifact is not None
    store = copy_of_trained.home / "store" / record.artifact.uri.partition("/store/")[2]
    folder = next(store.rglob("model.safetensors")).parent
    with_theirs = ["--set", f"initialize.from_folder={folder}", "--to", "initialize",
                   "--set", "initialize.architecture={}"]  # fmt: skip
    run = copy_of_trained.run(*with_theirs)
    made = copy_of_trained.steps(run)["initialize"]
    assert made.state == "completed" and made.external["from_folder"]
    new = copy_of_trained.home / "store" / made.artifact.uri.partition("/store/")[2]  # type: ignore[union-attr]
    assert (
        next(new.rglob("model.safetensors")).read_bytes()
        == (folder / "model.safetensors").read_bytes()
    )


def test_the_chain_gives_the_same_artifacts_in_s3_as_in_a_folder(
    workbench: Workbench, trained: Workbench, s3_server: object
) -> None:
    workbench.environment = {"TRAINWRIGHT_STORE": s3_server.uri("chain")}  # type: ignore[attr-defined]
    run = workbench.run("--to", "initialize")
    expected = trained.digests()
    assert workbench.digests(run) == {k: expected[k] for k in ("corpus", "initialize")}
