"""Nothing half-written, changed or foreign is ever read, on a folder and on S3."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.stages.artifact import (
    Artifact,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    content_digest,
    open_artifact,
    read_manifest,
)
from trainwright.stages.contract import DataError, Sample, StageResult, TransientError
from trainwright.stages.store import ConditionFailedError, NotFoundError, Store, open_store

KEY = "artifacts/corpus/" + "f" * 24
Make = Callable[..., Manifest]
Output = Callable[..., Path]
Spoil = Callable[[str, bytes], None]


@pytest.fixture
def artifact(store: Store) -> Artifact:
    return Artifact(store, KEY)


@pytest.fixture
def written(artifact: Artifact, output: Output, manifest_of: Make) -> Manifest:
    return artifact.commit(manifest_of(artifact.upload(output(), "t1")))


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_nothing_can_be_read_before_the_manifest(
    artifact: Artifact, output: Output, manifest_of: Make, tmp_path: Path
) -> None:
    assert artifact.manifest() is None
    files = artifact.upload(output(), "t1")
    assert artifact.manifest() is None
    artifact.commit(manifest_of(files))
    manifest = artifact.manifest()
    assert manifest is not None
    folder = artifact.read(manifest, tmp_path / "cache")
    assert files_in(folder) == {"deep/a": b"alpha", "deep/b": b"beta"}


def test_a_manifest_comes_back_as_it_was_written(artifact: Artifact, written: Manifest) -> None:
    assert artifact.manifest() == written
    assert open_artifact(artifact.uri).manifest() == written


def test_figures_that_are_not_finite_survive(
    artifact: Artifact, output: Output, manifest_of: Make
) -> None:
    result = StageResult(
        metrics={"nan": math.nan, "high": math.inf},
        summary={"table": [[math.nan, 1.0]]},
        samples=[Sample(prompt="é\u2028", completion="\x00")],
    )
    artifact.commit(manifest_of(artifact.upload(output(), "t1"), result=result))
    read = artifact.manifest()
    assert read is not None
    assert math.isnan(read.result.metrics["nan"])
    assert read.result.metrics["high"] == math.inf
    assert read.result.summary == {"table": [["NaN", 1.0]]}
    assert read.result.samples == result.samples


def test_an_artifact_without_files_is_an_artifact(
    artifact: Artifact, manifest_of: Make, tmp_path: Path
) -> None:
    artifact.commit(manifest_of([]))
    manifest = artifact.manifest()
    assert manifest is not None
    assert files_in(artifact.read(manifest, tmp_path / "cache")) == {}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-20], "is not a manifest"),
        (lambda data: b"", "is not a manifest"),
        (lambda data: b"[1, 2]", "is not a manifest"),
        (lambda data: b'{"program": "corpus"}', r"is not a manifest \(step: Field required\)"),
        (lambda data: data.replace(b'"loss": 1.5', b'"loss": 1.4'), "was changed after"),
        (lambda data: data.replace(b'"run-1"', b'"run-2"'), "was changed after"),
        (lambda data: data.replace(b'"digest": "', b'"digest": "0'), "was changed after"),
        (lambda data: b"\xff\xfe" + data, "is not a manifest"),
        (lambda data: b"[" * 100_000, "is not a manifest"),
    ],
)
def test_a_damaged_manifest_is_refused_with_the_reason(
    artifact: Artifact,
    written: Manifest,
    spoil: Spoil,
    damage: Callable[[bytes], bytes],
    says: str,
) -> None:
    key = f"{KEY}/manifest.json"
    data, _ = artifact.store.get(key)
    damaged = damage(data)
    assert damaged != data
    spoil(key, damaged)
    with pytest.raises(DamagedArtifactError, match=says) as caught:
        artifact.manifest()
    assert artifact.uri in str(caught.value)


def test_a_manifest_in_another_layout_of_the_same_json_is_the_same(
    artifact: Artifact, written: Manifest, spoil: Spoil
) -> None:
    key = f"{KEY}/manifest.json"
    values = json.loads(artifact.store.get(key)[0])
    spoil(key, json.dumps(dict(reversed(values.items()))).encode())
    assert artifact.manifest() == written


def test_a_manifest_from_before_a_field_was_added_is_still_intact(
    artifact: Artifact, written: Manifest
) -> None:
    """Its digest covers the JSON as it stands, not the model as it is today."""

    class Newer(Manifest):
        added: str = "default"

    data = artifact.store.get(f"{KEY}/manifest.json")[0]
    assert "added" not in json.loads(data)
    assert Newer.model_validate_json(data).added == "default"
    assert read_manifest(data, "uri").digest == written.digest


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "has 4 bytes, not 5"),
        (lambda data: data + b"x", "has 6 bytes, not 5"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "was changed: its sha256 is"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(
    artifact: Artifact,
    written: Manifest,
    spoil: Spoil,
    damage: Callable[[bytes], bytes],
    says: str,
    tmp_path: Path,
) -> None:
    entry = written.files[0]
    key = f"{KEY}/{entry.key}"
    spoil(key, damage(artifact.store.get(key)[0]))
    with pytest.raises(DamagedArtifactError, match="'deep/a' is not what was written") as caught:
        artifact.read(written, tmp_path / "cache")
    if artifact.store.local_path(KEY) is not None or "bytes" in says:
        with pytest.raises(DamagedArtifactError, match=says):
            artifact.verify(written)
    assert artifact.uri in str(caught.value)


def test_a_missing_file_is_refused_with_the_reason(
    artifact: Artifact, written: Manifest, tmp_path: Path
) -> None:
    artifact.store.delete(f"{KEY}/{written.files[1].key}")
    with pytest.raises(DamagedArtifactError, match="'deep/b' is missing"):
        artifact.verify(written)
    with pytest.raises(DamagedArtifactError, match="'deep/b' is missing"):
        artifact.read(written, tmp_path / "cache")


def test_a_damaged_copy_in_the_cache_is_fetched_again(
    artifact: Artifact, written: Manifest, tmp_path: Path
) -> None:
    if artifact.store.local_path(KEY) is not None:
        pytest.skip("a folder is read where it is")
    folder = artifact.read(written, tmp_path / "cache")
    (folder / "deep" / "a").write_bytes(b"ALPHA")
    (folder / "deep" / "b").unlink()
    again = artifact.read(written, tmp_path / "cache")
    assert again == folder
    assert files_in(again) == {"deep/a": b"alpha", "deep/b": b"beta"}


def test_a_manifest_of_another_artifact_is_refused(artifact: Artifact, written: Manifest) -> None:
    other = Artifact(artifact.store, "artifacts/corpus/" + "e" * 24)
    artifact.store.put(f"{other.key}/manifest.json", artifact.store.get(f"{KEY}/manifest.json")[0])
    with pytest.raises(DamagedArtifactError, match="that of another artifact"):
        other.manifest()


def entry(path: str, key: str) -> FileEntry:
    return FileEntry(path=path, key=key, size=1, sha256=hashlib.sha256(b"x").hexdigest())


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("../x", "data-t/../x"),
        ("a/../../x", "data-t/a/../../x"),
        ("/etc/passwd", "data-t//etc/passwd"),
        ("", "data-t/"),
        (".", "data-t/."),
        ("a//b", "data-t/a//b"),
        ("a", "../other/a"),
        ("a", "a"),
        ("a", "data-t/b"),
        ("a", "data-t/../a"),
        ("manifest.json", "manifest.json"),
    ],
)
def test_a_sealed_manifest_that_leaves_its_folder_is_refused(
    artifact: Artifact, manifest_of: Make, path: str, key: str
) -> None:
    sealed = manifest_of([entry(path, key)]).sealed()
    artifact.store.put(f"{KEY}/manifest.json", sealed.model_dump_json().encode())
    with pytest.raises(DamagedArtifactError, match=r"leaves its folder|is not a manifest"):
        artifact.manifest()


@pytest.mark.parametrize(
    "files",
    [
        [entry("a", "data-t/a"), entry("b", "data-u/b")],
        [entry("a", "data-t/a"), entry("a", "data-t/a")],
    ],
)
def test_a_sealed_manifest_of_two_tries_or_with_a_file_twice_is_refused(
    artifact: Artifact, manifest_of: Make, files: list[FileEntry]
) -> None:
    sealed = manifest_of(files).sealed()
    artifact.store.put(f"{KEY}/manifest.json", sealed.model_dump_json().encode())
    with pytest.raises(DamagedArtifactError, match="files of two tries, or named twice"):
        artifact.manifest()


def test_the_content_digest_forgets_the_try_and_the_order_and_nothing_else() -> None:
    one = [entry("a", "data-t/a"), entry("b", "data-t/b")]
    other = [entry("b", "data-u/b"), entry("a", "data-u/a")]
    assert content_digest(one) == content_digest(other)
    for change in ({"path": "c"}, {"size": 2}, {"sha256": "0" * 64}):
        assert content_digest([one[0].model_copy(update=change), one[1]]) != content_digest(one)


def test_what_is_set_aside_is_made_again_and_kept_for_a_look(
    artifact: Artifact, written: Manifest, spoil: Spoil, output: Output, manifest_of: Make
) -> None:
    spoil(f"{KEY}/manifest.json", b"garbage")
    aside = artifact.set_aside("it was garbage")
    assert artifact.manifest() is None
    assert artifact.store.get(aside)[0] == b"garbage"
    assert artifact.store.get(f"{aside}.reason.txt")[0] == b"it was garbage"
    again = artifact.commit(manifest_of(artifact.upload(output(), "t2")))
    assert artifact.manifest() == again
    artifact.verify(again)
    assert again.content == written.content


def test_what_is_not_there_cannot_be_set_aside(artifact: Artifact) -> None:
    with pytest.raises(NotFoundError):
        artifact.set_aside("why")


def test_setting_aside_spares_a_manifest_that_came_in_the_meantime(
    artifact: Artifact, written: Manifest, spoil: Spoil, output: Output, manifest_of: Make
) -> None:
    """Two flows find the damage; one makes the artifact again before the other sets it aside."""
    key = f"{KEY}/manifest.json"
    spoil(key, b"garbage")
    late = artifact.store.get(key)
    artifact.set_aside("first")
    good = artifact.commit(manifest_of(artifact.upload(output(), "t2")))

    class Late:
        """The store as the second flow saw it when it read."""

        def __getattr__(self, name: str) -> object:
            return getattr(artifact.store, name)

        def get(self, wanted: str) -> tuple[bytes, str]:
            return late if wanted == key else artifact.store.get(wanted)

    Artifact(Late(), KEY).set_aside("second")  # type: ignore[arg-type]
    assert artifact.manifest() == good


def test_an_orphan_that_goes_on_writing_cannot_change_a_committed_artifact(
    artifact: Artifact, output: Output, manifest_of: Make, tmp_path: Path
) -> None:
    orphan = output(a=b"orphan 1", b=b"orphan 2", c=b"orphan 3")
    artifact.upload(orphan, "orphan")
    winner = artifact.commit(manifest_of(artifact.upload(output(), "winner")))
    late = artifact.upload(output(a=b"late", b=b"later"), "orphan")
    assert artifact.commit(manifest_of(late, run_id="orphan")) == winner
    assert artifact.manifest() == winner
    artifact.verify(winner)
    folder = artifact.read(winner, tmp_path / "cache")
    assert files_in(folder) == {"deep/a": b"alpha", "deep/b": b"beta"}


def test_of_writers_that_race_to_commit_one_wins_and_all_return_it(
    artifact: Artifact, output: Output, manifest_of: Make
) -> None:
    gate = threading.Barrier(8)
    manifests = [
        manifest_of(artifact.upload(output(a=b"%d" % n), f"t{n}"), run_id=f"run-{n}")
        for n in range(8)
    ]

    def commit(manifest: Manifest) -> Manifest:
        gate.wait()
        return artifact.commit(manifest)

    with ThreadPoolExecutor(8) as pool:
        returned = list(pool.map(commit, manifests))
    assert len({manifest.digest for manifest in returned}) == 1
    assert artifact.manifest() == returned[0]
    assert returned[0].run_id in {manifest.run_id for manifest in manifests}
    artifact.verify(returned[0])


def test_a_commit_that_neither_wins_nor_finds_a_winner_can_be_tried_again(
    tmp_path: Path, manifest_of: Make
) -> None:
    class Conflicting:
        """A server that answers 409 to every conditional put."""

        root = "s3://bucket"

        def put(self, *_: object, **__: object) -> str:
            raise ConditionFailedError

        def get(self, key: str) -> tuple[bytes, str]:
            raise NotFoundError(key)

    with pytest.raises(TransientError, match="could not be written"):
        Artifact(Conflicting(), KEY).commit(manifest_of([]))  # type: ignore[arg-type]


def test_output_that_could_not_be_kept_is_refused(artifact: Artifact, output: Output) -> None:
    for name, target in (("dangling", "nowhere"), ("folder", "deep")):
        folder = output()
        (folder / name).symlink_to(target)
        with pytest.raises(DataError, match="neither a file nor a folder"):
            artifact.upload(folder, "t1")


def test_a_link_to_a_file_is_kept_as_the_file(
    artifact: Artifact, output: Output, manifest_of: Make, tmp_path: Path
) -> None:
    folder, outside = output(), tmp_path / "outside"
    outside.write_bytes(b"linked")
    (folder / "link").symlink_to(outside)
    manifest = artifact.commit(manifest_of(artifact.upload(folder, "t1")))
    outside.write_bytes(b"moved on")
    assert files_in(artifact.read(manifest, tmp_path / "cache"))["link"] == b"linked"


@pytest.mark.parametrize("uri", ["file:///store", "file:///store/artifacts/x", "artifacts/a/b", ""])
def test_a_uri_that_is_no_artifacts_is_refused(uri: str) -> None:
    with pytest.raises(DataError, match="is not an artifact's URI"):
        open_artifact(uri)


def test_an_artifact_is_found_by_its_uri(tmp_path: Path) -> None:
    artifact = Artifact(open_store(f"file://{tmp_path}"), KEY)
    assert open_artifact(artifact.uri).uri == artifact.uri
    assert open_artifact(artifact.uri).key == KEY
