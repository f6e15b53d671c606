"""`trainwright gc` frees what no kept run needs, and nothing else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from trainwright.flows.chain import StepName
from trainwright.flows.collect import collect_garbage
from trainwright.flows.runs import Owner, RunRecord, Runs, RunState
from trainwright.stages.artifact import Artifact, Manifest
from trainwright.stages.contract import (
    ArtifactRef,
    DataError,
    StageRecord,
    StageState,
    UsageError,
    utcnow,
)
from trainwright.stages.lease import Lease, boot_id
from trainwright.stages.settings import Settings, settings
from trainwright.stages.store import open_store

OLD = 30 * 86_400.0
TTL = 1.0


@dataclass
class House:
    """A home with a store, filled by hand with what runs leave."""

    place: Settings
    output: Callable[..., Path]
    manifest_of: Callable[..., Manifest]
    out: io.StringIO = field(default_factory=io.StringIO)

    @property
    def runs(self) -> Runs:
        return Runs(open_store(self.place.store))

    def artifact(self, name: str, **inputs: ArtifactRef) -> ArtifactRef:
        """A finished artifact, 30 days old."""
        artifact = Artifact(self.runs.store, f"artifacts/corpus/{name}")
        manifest = artifact.commit(
            self.manifest_of(artifact.upload(self.output(), "t"), inputs=inputs)
        )
        age(Path(artifact.uri.removeprefix("file://")))
        return ArtifactRef(uri=artifact.uri, digest=manifest.content)

    def run(self, name: str, run_state: RunState = RunState.COMPLETED, **fields: Any) -> str:
        """A run with one step; higher names are newer. Its log and report are 30 days old."""
        run_id = f"demo-2026010{name}-000000-aaaa"
        run = RunRecord(
            id=run_id, recipe_name="demo", recipe={}, state=run_state,
            owner=fields.pop("owner", Owner.me()), started_at=utcnow(),
        )  # fmt: skip
        self.runs.save(run)
        values = {"program": "corpus", "state": StageState.COMPLETED, "started_at": utcnow()}
        step = StageRecord(run_id=run_id, step=StepName.CORPUS, **{**values, **fields})
        self.runs.save_step(step)
        for root in (self.place.logs, self.place.home / "reports"):
            (root / run_id).mkdir(parents=True)
            (root / run_id / "file").write_text("words")
            age(root / run_id)
        return run_id

    def scratch(self, name: str, *, old: bool = True) -> Path:
        """Snapshots of an artifact that is, or was, being made."""
        folder = self.place.work / "corpus" / name
        folder.mkdir(parents=True)
        (folder / "snapshot").write_bytes(bytes(100))
        if old:
            age(folder)
        return folder

    def collect(self, *, delete: bool = True, days: float = 7, keep_runs: int = 1) -> int:
        console = Console(file=self.out, width=300)
        return collect_garbage(
            console, self.runs, delete=delete, days=days, keep_runs=keep_runs, ttl=TTL,
            place=self.place,
        )  # fmt: skip

    def artifacts(self) -> set[str]:
        """Names of the artifacts that are still whole."""
        listed = self.runs.store.list("artifacts/")
        return {info.key.split("/")[2] for info in listed if info.key.endswith("/manifest.json")}

    def logs(self) -> set[str]:
        return {path.name for path in self.place.logs.iterdir()}


def age(folder: Path) -> None:
    then = time.time() - OLD
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


def everything(home: Path) -> dict[Path, float]:
    return {path: path.stat().st_mtime for path in home.rglob("*") if path.is_file()}


@pytest.fixture
def house(
    tmp_path: Path,
    output: Callable[..., Path],
    manifest_of: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
) -> House:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINWRIGHT_STORE", raising=False)
    return House(settings(), output, manifest_of)


def test_a_home_without_a_run_has_nothing_to_free(house: House) -> None:
    assert house.collect() == 0


def test_the_newest_runs_keep_artifacts_logs_and_reports_and_older_ones_lose_them(
    house: House,
) -> None:
    first, second, third = (house.run(n, artifact=house.artifact(f"of-{n}")) for n in "123")
    assert house.collect(keep_runs=2) > 0
    assert house.artifacts() == {"of-2", "of-3"}
    assert house.logs() == {second, third}
    assert not (house.place.home / "reports" / first).exists()
    assert (house.place.home / "reports" / second).exists()
    assert {r.id for r in house.runs.all()} == {first, second, third}, "records are history"


def test_listing_changes_nothing_and_tells_the_bytes_that_deleting_then_frees(
    house: House,
) -> None:
    house.run("1", artifact=house.artifact("of-1"))
    house.run("2", artifact=house.artifact("of-2"))
    house.scratch("f" * 24)
    before = everything(house.place.home)
    listed = house.collect(delete=False)
    assert everything(house.place.home) == before
    for word in ("artifacts/corpus/of-1", "logs of a run not kept", "old scratch", "gc --delete"):
        assert word in house.out.getvalue()
    assert house.collect() == listed > 0
    assert house.collect(delete=False) == 0
    assert "nothing can go" in house.out.getvalue()


def test_what_a_kept_artifact_was_made_from_stays_with_it(house: House) -> None:
    grandparent = house.artifact("grandparent")
    parent = house.artifact("parent", corpus=grandparent)
    house.artifact("stranger")
    house.run("1", artifact=house.artifact("child", model=parent))
    house.collect()
    assert house.artifacts() == {"grandparent", "parent", "child"}


def test_inputs_of_a_step_that_failed_stay_for_another_try(house: House) -> None:
    corpus = house.artifact("corpus")
    house.run("1", RunState.FAILED, state=StageState.FAILED, inputs={"corpus": corpus})
    house.collect()
    assert house.artifacts() == {"corpus"}


def test_a_run_that_is_going_on_keeps_all_however_old_it_is_and_a_dead_one_does_not(
    house: House,
) -> None:
    alive = house.run("1", RunState.RUNNING, artifact=house.artifact("alive"))
    gone = Owner(host="here", boot=boot_id(), pid=os.getpid(), started=1.0)
    house.run("2", RunState.RUNNING, artifact=house.artifact("dead"), owner=gone)
    newest = house.run("3", artifact=house.artifact("newest"))
    house.collect()
    assert house.artifacts() == {"alive", "newest"}
    assert house.logs() == {alive, newest}


def test_the_current_corpus_stays_without_any_run(house: House) -> None:
    current = house.artifact("current", parent=house.artifact("its-source"))
    house.artifact("former")
    house.runs.store.put("corpora/demo/current.json", current.model_dump_json().encode())
    house.collect()
    assert house.artifacts() == {"current", "its-source"}


def test_what_is_younger_than_the_given_days_stays(house: House) -> None:
    first = house.run("1", artifact=house.artifact("of-1"))
    house.run("2", artifact=house.artifact("of-2"))
    house.collect(days=31)
    assert house.artifacts() == {"of-1", "of-2"}
    assert first in house.logs()


def test_scratch_goes_if_finished_or_old_unless_a_kept_run_can_go_on_with_it(house: House) -> None:
    resumable, forgotten, fresh = "a" * 24, "b" * 24, "c" * 24
    house.run("1", RunState.FAILED, state=StageState.FAILED, fingerprint=f"{resumable}0000")
    house.artifact("finished")
    kept = [house.scratch(resumable), house.scratch(fresh, old=False)]
    goes = [house.scratch(forgotten), house.scratch("finished", old=False)]
    house.collect()
    assert [path.exists() for path in kept] == [True, True]
    assert [path.exists() for path in goes] == [False, False]


def test_copies_of_remote_artifacts_go_unless_a_kept_run_reads_them_or_they_are_new(
    house: House,
) -> None:
    read = house.artifact("read")
    house.run("1", inputs={"x": read})
    for name in (read.digest, "old", "new"):
        folder = house.place.cache / name
        folder.mkdir(parents=True)
        (folder / "file").write_text("words")
        if name != "new":
            age(folder)
    house.collect()
    assert {path.name for path in house.place.cache.iterdir()} == {read.digest, "new"}


def test_scratch_and_artifact_under_a_live_lease_stay(house: House) -> None:
    name = "d" * 24
    house.artifact("held")
    folder = house.scratch(name)
    with (
        Lease(house.runs.store, "artifacts/corpus/held/lease.json", ttl=TTL),
        Lease(house.runs.store, f"artifacts/corpus/{name}/lease.json", ttl=TTL),
    ):
        house.collect()
        assert house.artifacts() == {"held"}
        assert folder.exists()
        assert f"left alone: artifacts/corpus/held: held by process {os.getpid()}" in (
            house.out.getvalue()
        )
    house.collect()
    assert house.artifacts() == set()
    assert not folder.exists()
    assert list(house.runs.store.list("artifacts/")) == [], "no lease of gc's own is left"


def test_the_lease_of_a_killed_stage_does_not_keep_its_scratch(house: House) -> None:
    name = "e" * 24
    folder = house.scratch(name)
    code = (
        "import os, sys\n"
        "from trainwright.stages.lease import Lease\n"
        "from trainwright.stages.store import open_store\n"
        "Lease(open_store(sys.argv[1]), sys.argv[2], ttl=600).acquire()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    key = f"artifacts/corpus/{name}/lease.json"
    assert subprocess.run([sys.executable, "-c", code, house.place.store, key]).returncode == -9
    house.collect()
    assert not folder.exists()


def test_a_link_in_the_home_is_not_followed(house: House, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    age(elsewhere)
    house.place.logs.mkdir(parents=True)
    (house.place.logs / "link").symlink_to(elsewhere)
    house.collect()
    assert (elsewhere / "mine").exists()


def test_nothing_goes_while_a_record_or_an_alias_cannot_be_read(house: House) -> None:
    run_id = house.run("1", artifact=house.artifact("of-1"))
    house.runs.store.put("corpora/demo/current.json", b"{")
    with pytest.raises(DataError, match=r"corpora/demo/current\.json cannot be read"):
        house.collect()
    house.runs.store.delete("corpora/demo/current.json")
    house.runs.store.put(f"runs/{run_id}/steps/corpus.json", b"{}")
    with pytest.raises(DataError, match=f"a step record of run {run_id} cannot be read"):
        house.collect()
    assert house.artifacts() == {"of-1"}


@pytest.mark.parametrize(("days", "keep_runs"), [(-1.0, 1), (7.0, 0)])
def test_bounds_that_would_delete_what_is_in_use_are_refused(
    house: House, days: float, keep_runs: int
) -> None:
    with pytest.raises(UsageError, match="at least one run"):
        house.collect(days=days, keep_runs=keep_runs)
