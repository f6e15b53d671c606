"""Which objects of a store nobody needs any more, and their deletion.

Three kinds: files of a try that no manifest names (its writer died or lost the race), whole
artifacts that no kept run names and that are old, and leftovers of broken uploads. An artifact whose
lease is alive is left alone. Where a manifest cannot be read, no file of it is called an orphan.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from trainwright.stages.artifact import LEASE, MANIFEST, Artifact, DamagedArtifactError
from trainwright.stages.contract import TransientError
from trainwright.stages.lease import Lease
from trainwright.stages.store import NotFoundError, ObjectInfo, Store, Unfinished

ARTIFACTS = "artifacts/"
DAY = 86_400.0


class Kind(StrEnum):
    """Why something can go."""

    ORPHAN = "orphan"
    """Files of a try that no manifest names, whose writer is dead."""
    UNREACHABLE = "unreachable"
    """An artifact that no kept run names."""
    UNFINISHED = "unfinished"
    """What a broken upload left."""


@dataclass(frozen=True)
class Garbage:
    """Something that can go."""

    kind: Kind
    artifact: str
    """Key of the artifact it belongs to, `artifacts/<program>/<fingerprint>`."""
    name: str
    """The folder `data-<token>`, or what it is."""
    size: int
    """Bytes."""
    keys: tuple[str, ...] = ()
    """Objects to delete, in this order."""
    leftover: Unfinished | None = None
    version: str = ""
    """Tag of the manifest that is to go; another one in its place is left alone."""


@dataclass
class Plan:
    """What `collect` found."""

    garbage: list[Garbage] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Artifacts that hold garbage, or might, and were left alone; and why."""
    dead: dict[str, str] = field(default_factory=dict)
    """Leases that are dead, by artifact, with the etag at which they stood still."""

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(garbage.size for garbage in self.garbage)


def collect(
    store: Store,
    reachable: Collection[str],
    *,
    min_age: float = 7 * DAY,
    upload_age: float = DAY,
    ttl: float = 20.0,
    now: float | None = None,
) -> Plan:
    """What can go; deletes nothing.

    `reachable`: keys of the artifacts that run records name (`artifacts/<program>/<fingerprint>`).
    `min_age`: an unreachable artifact stays until its manifest is this old, in seconds, since a run
    that has just chosen to reuse it may not have written so yet. `upload_age`: the same for leftovers
    of uploads. `ttl`: the writers' time to live of a lease; whether a lease of another machine is
    alive takes this long to see, once for all of them. `now`: seconds since the epoch.
    """
    now = time.time() if now is None else now
    plan = Plan()
    folders = {key: list(found) for key, found in _by_artifact(store.list(ARTIFACTS))}
    candidates: dict[str, list[Garbage]] = {}
    for key, found in folders.items():
        try:
            old = _unreachable(key, found, reachable, now - min_age)
            candidates[key] = [old] if old else list(_orphans(Artifact(store, key), found))
        except DamagedArtifactError as error:
            plan.kept[key] = f"damaged: {error}"
    leased = [
        key for key, found in folders.items() if candidates.get(key) and _name(found, key, LEASE)
    ]
    alive, plan.dead = _judge_leases(store, leased, ttl)
    for key, garbage in candidates.items():
        if key in alive and garbage:
            plan.kept[key] = f"held by {alive[key]}"
        else:
            plan.garbage.extend(garbage)
    plan.garbage.extend(_unfinished(store, now - upload_age))
    return plan


def sweep(store: Store, plan: Plan, *, ttl: float = 20.0) -> Iterator[tuple[Garbage, str]]:
    """Delete what the plan names, one by one: each with "" or the reason why it was left.

    It holds the artifact's lease while it deletes, so no writer can start there in the meantime, and
    looks once more for a manifest that names the files.
    """
    for garbage in plan.garbage:
        try:
            if garbage.leftover is not None:
                store.discard(garbage.leftover)
                yield garbage, ""
            else:
                yield garbage, _delete(store, garbage, plan.dead.get(garbage.artifact), ttl)
        except (TransientError, DamagedArtifactError) as error:
            yield garbage, str(error)


def _delete(store: Store, garbage: Garbage, dead: str | None, ttl: float) -> str:
    artifact = Artifact(store, garbage.artifact)
    lease = Lease(store, artifact.lease_key, ttl=ttl)
    if not lease.try_acquire(dead):
        return f"held by {lease.holder()}"
    try:
        if _needed(artifact, garbage):
            return "it was written anew"
        for key in garbage.keys:
            if key != artifact.lease_key:
                store.delete(key)
        lease.check()
    finally:
        lease.release()
    return ""


def _needed(artifact: Artifact, garbage: Garbage) -> bool:
    if garbage.kind is Kind.ORPHAN:
        return garbage.name in _named(artifact)
    try:
        return artifact.store.head(f"{artifact.key}/{MANIFEST}").etag != garbage.version
    except NotFoundError:
        return False


def _by_artifact(objects: Iterable[ObjectInfo]) -> Iterator[tuple[str, Iterator[ObjectInfo]]]:
    deep = (info for info in objects if info.key.count("/") >= 3)
    return groupby(deep, key=lambda info: "/".join(info.key.split("/")[:3]))


def _name(found: list[ObjectInfo], key: str, name: str) -> ObjectInfo | None:
    return next((info for info in found if info.key == f"{key}/{name}"), None)


def _unreachable(
    key: str, found: list[ObjectInfo], reachable: Collection[str], before: float
) -> Garbage | None:
    manifest = _name(found, key, MANIFEST)
    if manifest is None or key in reachable or manifest.modified > before:
        return None
    # The manifest goes first: from then on nothing of it is read.
    keys = [manifest.key, *(info.key for info in found if info is not manifest)]
    size = sum(info.size for info in found)
    return Garbage(Kind.UNREACHABLE, key, "artifact", size, tuple(keys), version=manifest.etag)


def _orphans(artifact: Artifact, found: list[ObjectInfo]) -> Iterator[Garbage]:
    if [info.key for info in found] == [artifact.lease_key]:
        yield Garbage(Kind.ORPHAN, artifact.key, LEASE, found[0].size)
    named = _named(artifact)
    folders: dict[str, list[ObjectInfo]] = {}
    for info in found:
        folder, slash, _ = info.key.removeprefix(f"{artifact.key}/").partition("/")
        if slash and folder.startswith("data-") and folder not in named:
            folders.setdefault(folder, []).append(info)
    for folder, infos in folders.items():
        size = sum(info.size for info in infos)
        yield Garbage(Kind.ORPHAN, artifact.key, folder, size, tuple(i.key for i in infos))


def _named(artifact: Artifact) -> set[str]:
    """Folders that the artifact's manifest names."""
    manifest = artifact.manifest()
    return set() if manifest is None else {e.key.partition("/")[0] for e in manifest.files}


def _judge_leases(
    store: Store, artifacts: list[str], ttl: float
) -> tuple[dict[str, str], dict[str, str]]:
    """Holders of the leases that are alive, and etags of those that are dead, by artifact."""
    leases = {key: Lease(store, f"{key}/{LEASE}", ttl=ttl) for key in artifacts}
    seen = {key: lease.observe() for key, lease in leases.items()}
    asked = {key: lease for key, lease in leases.items() if not lease.free()}
    if asked:
        time.sleep(ttl * 1.05)
    alive = {
        key: lease.holder()
        for key, lease in asked.items()
        if lease.observe() not in (seen[key], "")
    }
    return alive, {key: etag for key, etag in seen.items() if etag and key not in alive}


def _unfinished(store: Store, before: float) -> Iterator[Garbage]:
    for leftover in store.unfinished(ARTIFACTS):
        if leftover.started < before:
            artifact = "/".join(leftover.key.split("/")[:3])
            yield Garbage(Kind.UNFINISHED, artifact, leftover.key, leftover.size, leftover=leftover)
