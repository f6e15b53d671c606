"""What `trainwright gc` does: which artifacts, scratch, logs and reports no kept run needs.

Kept are the newest runs, every run that is going on, and the corpora that `corpora/*/current.json`
names. Their artifacts stay, and those that these were made from. What can go of a store is for
`stages.gc` to say; here, of the home: scratch of finished or forgotten work, and copies of remote
artifacts, logs and reports of runs that are not kept.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.flows.chain import CHAIN
from trainwright.flows.findings import show_bytes
from trainwright.flows.runs import DamagedRecordError, Runs, RunState
from trainwright.stages import gc
from trainwright.stages.artifact import MANIFEST, Artifact, DamagedArtifactError, key_of
from trainwright.stages.contract import ArtifactRef, DataError, UsageError
from trainwright.stages.lease import Lease
from trainwright.stages.settings import Settings, settings
from trainwright.stages.store import NotFoundError, Store

if TYPE_CHECKING:
    from rich.console import Console

_TTL = 20.0
_KEY_LETTERS = 24
"""Letters of a fingerprint in the name of its artifact and of its scratch folder (flows.execute)."""


@dataclass(frozen=True)
class Leftover:
    """A folder of the home that can go."""

    kind: str
    path: Path
    size: int
    """Bytes."""
    artifact: str = ""
    """Key of the artifact that is made with it, if it is scratch."""


def collect_garbage(
    console: Console,
    runs: Runs,
    *,
    delete: bool,
    days: float,
    keep_runs: int,
    ttl: float = _TTL,
    place: Settings | None = None,
) -> int:
    """List what can go, with sizes; delete it if `delete`. Bytes that can go, or that went.

    `days`: what is younger stays. `keep_runs`: newest runs whose artifacts, logs and reports stay.
    `ttl`: seconds without heartbeat until another machine's writer counts as dead.
    """
    if not days >= 0 or keep_runs < 1:  # NaN is neither
        raise UsageError("gc keeps at least one run (--keep-runs 1), and --older-than is 0 or more")
    place = place or settings()
    kept = kept_runs(runs, keep_runs)
    needed = reachable(runs, kept)
    plan = gc.collect(runs.store, needed, min_age=days * gc.DAY, ttl=ttl)
    leftovers = list(home_leftovers(place, runs, kept, days))
    for key, why in plan.kept.items():
        console.print(f"left alone: {key}: {why}", markup=False)
    if not delete:
        _list(console, plan, leftovers)
        return int(plan.size) + sum(leftover.size for leftover in leftovers)
    # Looking takes a while, with leases of other machines to wait for: a run may have begun meanwhile.
    kept = kept_runs(runs, keep_runs)
    needed = reachable(runs, kept)
    plan.garbage = [item for item in plan.garbage if _can_go(item, needed)]
    leftovers = [leftover for leftover in leftovers if leftover.path.name not in kept]
    freed = _sweep_store(console, runs.store, plan, ttl)
    freed += _sweep_home(console, runs.store, leftovers)
    console.print(f"freed {show_bytes(freed)}")
    return freed


def _can_go(item: gc.Garbage, needed: Collection[str]) -> bool:
    return item.kind is not gc.Kind.UNREACHABLE or item.artifact not in needed


# -- what is needed


def kept_runs(runs: Runs, newest: int) -> set[str]:
    """Names of the newest runs (readable or not) and of all that are going on."""
    going = (run.id for run in runs.all() if run.state is RunState.RUNNING and not run.dead)
    return {*runs.names()[:newest], *going}


def reachable(runs: Runs, kept: Collection[str]) -> set[str]:
    """Keys of the artifacts that kept runs and corpora name, and of those that they were made from."""
    needed: set[str] = set()
    wanted = [ref for run_id in kept for ref in _of_run(runs, run_id)]
    wanted += list(_of_corpora(runs.store))
    while wanted:
        key = key_of(wanted.pop())
        if key not in needed:
            needed.add(key)
            wanted += _inputs_of(runs.store, key)
    return needed


def _of_run(runs: Runs, run_id: str) -> Iterator[ArtifactRef]:
    try:
        records = [runs.step(run_id, step.name) for step in CHAIN]
    except DamagedRecordError as error:
        raise DataError(
            f"a step record of run {run_id} cannot be read, so nobody knows what it needs: {error}"
        ) from None
    for record in records:
        if record is None:
            continue
        yield from record.inputs.values()
        if record.artifact is not None:
            yield record.artifact
        elif record.fingerprint:
            # It is being made, or may be made again from where it stopped.
            uri = f"artifacts/{record.program}/{record.fingerprint[:_KEY_LETTERS]}"
            yield ArtifactRef(uri=uri, digest="")


def _of_corpora(store: Store) -> Iterator[ArtifactRef]:
    for info in store.list("corpora/"):
        if not info.key.endswith("/current.json"):
            continue
        try:
            value = json.loads(store.get(info.key)[0])
            yield ArtifactRef(uri=value["uri"], digest=value["digest"])
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{store.root}/{info.key} cannot be read, so nobody knows which corpus is current: "
                "run data-refresh again, or delete it"
            ) from None


def _inputs_of(store: Store, key: str) -> list[ArtifactRef]:
    try:
        manifest = Artifact(store, key).manifest()
    except DamagedArtifactError:
        return []
    return [] if manifest is None else list(manifest.inputs.values())


# -- what lies in the home


def home_leftovers(
    place: Settings, runs: Runs, kept: Collection[str], days: float
) -> Iterator[Leftover]:
    """Scratch that is finished or old; copies, logs and reports of runs that are not kept."""
    before = time.time() - days * gc.DAY
    needed = {run_id: {s.fingerprint for s in runs.steps(run_id).values()} for run_id in kept}
    fingerprints = {f[:_KEY_LETTERS] for found in needed.values() for f in found}
    for folder in _folders(place.work, depth=2):
        artifact = f"artifacts/{folder.parent.name}/{folder.name}"
        finished = _exists(runs.store, f"{artifact}/{MANIFEST}")
        old = folder.name not in fingerprints and _newest(folder) < before
        if finished or old:
            why = "scratch of a finished artifact" if finished else "old scratch"
            yield Leftover(why, folder, _size(folder), artifact)
    inputs = {ref.digest for run_id in kept for ref in _of_run(runs, run_id)}
    for folder in _folders(place.cache, depth=1):
        if folder.name not in inputs and _newest(folder) < before:
            yield Leftover("copy of a remote artifact", folder, _size(folder))
    for kind, root in (("logs", place.logs), ("report", place.home / "reports")):
        for folder in _folders(root, depth=1):
            if folder.name not in kept and _newest(folder) < before:
                yield Leftover(f"{kind} of a run not kept", folder, _size(folder))


def _folders(root: Path, depth: int) -> list[Path]:
    """Folders `depth` levels below; a link is none of ours."""
    found = sorted(root.glob("/".join("*" * depth)))
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _exists(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except NotFoundError:
        return False
    return True


def _newest(folder: Path) -> float:
    """When something in the folder was last written, in seconds since the epoch."""
    return max(_stat(path, "st_mtime") for path in (folder, *folder.rglob("*")))


def _size(folder: Path) -> int:
    return int(sum(_stat(path, "st_size") for path in folder.rglob("*") if path.is_file()))


def _stat(path: Path, field: str) -> float:
    """A figure of a file; 0 for one that vanished meanwhile."""
    try:
        return float(getattr(path.lstat(), field))
    except OSError:
        return 0.0


# -- listing and deleting


def _list(console: Console, plan: gc.Plan, leftovers: list[Leftover]) -> None:
    from rich.table import Table

    rows = [(item.kind.value, f"{item.artifact}/{item.name}", item.size) for item in plan.garbage]
    rows += [(leftover.kind, str(leftover.path), leftover.size) for leftover in leftovers]
    if not rows:
        console.print("nothing can go")
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("why", no_wrap=True)
    table.add_column("what", overflow="fold")
    for why, what, size in sorted(rows, key=lambda row: -row[2]):
        table.add_row(show_bytes(size), why, what)
    console.print(table)
    total = sum(size for _, _, size in rows)
    console.print(
        f"{show_bytes(total)} in {len(rows)} places; delete with: trainwright gc --delete"
    )


def _sweep_store(console: Console, store: Store, plan: gc.Plan, ttl: float) -> int:
    freed = 0
    for item, left in gc.sweep(store, plan, ttl=ttl):
        name = f"{item.artifact}/{item.name}"
        if left:
            console.print(f"left: {name}: {left}", markup=False)
            continue
        console.print(f"deleted {name} ({item.kind}, {show_bytes(item.size)})", markup=False)
        freed += int(item.size)
    return freed


def _sweep_home(console: Console, store: Store, leftovers: list[Leftover]) -> int:
    freed = 0
    for leftover in leftovers:
        left = _delete_scratch(store, leftover) if leftover.artifact else _remove(leftover.path)
        if left:
            console.print(f"left: {leftover.path}: {left}", markup=False)
            continue
        what = f"deleted {leftover.path} ({leftover.kind}, {show_bytes(leftover.size)})"
        console.print(what, markup=False)
        freed += leftover.size
    return freed


def _delete_scratch(store: Store, leftover: Leftover) -> str:
    """Delete scratch while its artifact's lease is ours, so that no stage can be at work in it."""
    lease = Lease(store, f"{leftover.artifact}/lease.json", ttl=_TTL)
    if not lease.try_acquire():
        return f"held by {lease.holder()}"
    try:
        return _remove(leftover.path)
    finally:
        lease.release()


def _remove(folder: Path) -> str:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        return str(error)
    return ""
