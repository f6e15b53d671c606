"""The corpus stage as a program: counts that add up, the same bytes always, nothing lost to a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from tokenizers import Tokenizer

from trainwright.stages.artifact import file_sha256
from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError, ExitCode, Outcome, StageSpec
from trainwright.stages.corpus import main
from trainwright.stages.corpus.paragraphs import paragraphs
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.python_docs import STDLIB, find_package, harvest
from trainwright.stages.corpus.sources import resolve
from trainwright.stages.corpus.text import content_id
from trainwright.stages.corpus.tokenizer import SPECIAL_TOKENS
from trainwright.stages.fingerprint import fingerprint
from trainwright.stages.progress import Progress
from trainwright.stages.registry import PROGRAMS
from trainwright.stages.tracking import Tracker

NOISE = [
    "aW5kZXggb2YgdGhlIHJlYWRlciBhbmQgdGhlIHdyaXRlcg" * 4,
    ">>> a = [1, 2, 3]\n>>> sum(a)\n6\n>>> max(a), min(a)\n(3, 1)\n>>> sorted(a)",
    "buy now buy now buy now buy now buy now buy now buy now buy now buy now buy now of the and",
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Paragraphs of the standard library's documentation: real text that every Python has."""
    found: dict[str, None] = {}
    for file in find_package(STDLIB).files:
        for docstring in harvest(file).docstrings:
            for block in paragraphs(docstring.text):
                if len(block) > 90 and "\n" not in block:
                    found[block] = None
        if len(found) >= 2400:
            break
    return list(found)[:2400]


def write_lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def shuffled(texts: list[str]) -> list[str]:
    """Thirty texts that stand nowhere else, their words in another order."""
    draw = random.Random(0)
    return [" ".join(draw.sample(t.split(), len(t.split()))) for t in texts[1170:1200]]


def lay_out(folder: Path, texts: list[str]) -> None:
    """Four training files with duplicates and noise among them, and two of reference text."""
    train = texts[:1170]
    train += train[:40]
    train += [text.replace(" the ", " that ", 1) + " Indeed." for text in train[100:130]]
    train += shuffled(texts)
    train += [f"{text} A line ends with <|eos|> here." for text in texts[1200:1212]]
    train += NOISE
    for number in range(4):
        write_lines(folder / f"train-{number}.jsonl", train[number::4])
    for number in range(2):
        write_lines(folder / f"clean-{number}.jsonl", texts[1200 + number :: 2])


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "sources": [
            {"name": "web", "kind": "files", "paths": [f"{folder}/train-*.jsonl"],
             "heldout_share": 0.1},
            {"name": "clean", "kind": "files", "paths": [f"{folder}/clean-*.jsonl"],
             "role": "reference"},
        ],
        "tokenizer": {"vocab_size": 600},
        "shard_tokens": 20_000,
        **changes,
    }  # fmt: skip


def make_spec(home: Path, values: dict[str, Any]) -> StageSpec:
    params = CorpusParams.model_validate(values)
    external = resolve(params).digests
    program = PROGRAMS["corpus"]
    key = fingerprint(program.name, program.version, params, {}, external)
    home.mkdir(parents=True, exist_ok=True)
    return StageSpec(
        run_id="test",
        step="corpus",
        program="corpus",
        params=params.model_dump(mode="json"),
        external=external,
        fingerprint=key,
        output=f"file://{home}/store/artifacts/corpus/{key}",
        work=str(home / "work" / key),
        cache=str(home / "cache"),
        outcome=str(home / "outcome.json"),
        progress=str(home / "progress.jsonl"),
        lease_ttl=2.0,
    )


def start(home: Path, spec: StageSpec) -> subprocess.Popen[bytes]:
    (home / "spec.json").write_text(spec.model_dump_json())
    command = [
        sys.executable,
        "-m",
        "trainwright.stages",
        "corpus",
        "--spec",
        str(home / "spec.json"),
    ]
    with (home / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run(home: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Run to the end; the manifest."""
    spec = make_spec(home, values)
    code = start(home, spec).wait(timeout=300)
    assert code == 0, (home / "log.txt").read_text()[-3000:]
    return read_manifest(spec)


def read_manifest(spec: StageSpec) -> dict[str, Any]:
    path = Path(spec.output.removeprefix("file://")) / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_text())
    manifest["folder"] = str(path.parent / manifest["files"][0]["key"].partition("/")[0])
    return manifest


def digests(manifest: dict[str, Any]) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in manifest["files"]}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> dict[str, Any]:
    """The corpus of one undisturbed run with one worker, and how long it took."""
    folder = tmp_path_factory.mktemp("corpus")
    lay_out(folder / "data", texts)
    began = time.monotonic()
    manifest = run(folder / "one", recipe(folder / "data", workers=1))
    return {**manifest, "data": folder / "data", "seconds": time.monotonic() - began}


def corpus_json(built: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(built["folder"]) / "corpus.json").read_text())
    return content


def catalogue(built: dict[str, Any], query: str) -> list[tuple[Any, ...]]:
    path = Path(built["folder"]) / "catalogue.parquet"
    database = duckdb.connect()
    database.execute(f"CREATE VIEW catalogue AS SELECT * FROM read_parquet('{path}')")
    return database.execute(query).fetchall()


@pytest.mark.slow
def test_every_document_is_kept_or_dropped_for_a_first_reason(built: dict[str, Any]) -> None:
    metrics = built["result"]["metrics"]
    lines = sum(len(p.read_text().splitlines()) for p in built["data"].glob("train-*.jsonl"))
    assert metrics["documents_in"] == lines
    assert metrics["documents_in"] == metrics["documents_kept"] + metrics["documents_dropped"]
    content = corpus_json(built)
    assert sum(content["dropped"].values()) == metrics["documents_dropped"]
    split_rows = catalogue(
        built,
        "SELECT split, count(*), count(*) FILTER (kept), count(*) FILTER (first_reason IS NULL), "
        "count(*) FILTER (kept = (len(reasons) > 0)) FROM catalogue GROUP BY split",
    )
    rows = {split: rest for split, *rest in split_rows}
    assert set(rows) == {"train", "heldout", "reference", "check"}
    for _, kept, without_reason, contradictions in rows.values():
        assert kept == without_reason and contradictions == 0
    for split in ("train", "heldout"):
        assert content["splits"][split]["documents"] == rows[split][1]


@pytest.mark.slow
def test_what_was_planted_is_found(built: dict[str, Any]) -> None:
    dropped = corpus_json(built)["dropped_any"]
    assert dropped["exact_duplicate"] == 40
    assert dropped["near_duplicate"] >= 10
    unknown = catalogue(
        built,
        "SELECT count(*) FROM catalogue WHERE survivor IS NOT NULL "
        "AND survivor NOT IN (SELECT id FROM catalogue)",
    )
    assert unknown == [(0,)]
    close = catalogue(built, "SELECT min(jaccard) FROM catalogue WHERE jaccard IS NOT NULL")
    assert close[0][0] >= 0.7


@pytest.mark.slow
def test_the_perplexity_filter_finds_shuffled_text_and_spares_the_rest(
    built: dict[str, Any], texts: list[str]
) -> None:
    planted = {content_id(text) for text in shuffled(texts)}
    rows = catalogue(
        built,
        "SELECT content, list_contains(reasons, 'perplexity_high') FROM catalogue "
        "WHERE split = 'train' AND (kept OR first_reason = 'perplexity_high')",
    )
    caught = [high for content, high in rows if content in planted]
    lost = [high for content, high in rows if content not in planted]
    assert len(caught) >= 10 and len(lost) >= 500
    assert sum(caught) / len(caught) > 0.8
    assert sum(lost) / len(lost) < 0.1


@pytest.mark.slow
def test_shards_hold_the_kept_text_and_the_catalogue_says_where(built: dict[str, Any]) -> None:
    folder = Path(built["folder"])
    content = corpus_json(built)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    tokens = {
        path.name: np.fromfile(path, content["dtype"]) for path in folder.glob("shards/*.bin")
    }
    rows = catalogue(
        built,
        "SELECT shard, first_token, tokens, excerpt, bytes FROM catalogue WHERE shard IS NOT NULL",
    )
    total = hostile = 0
    for shard, first, count, excerpt, size in rows:
        ids = tokens[shard][first : first + count]
        assert (ids[0], ids[-1]) == (1, 2)
        assert min(ids[1:-1]) >= len(SPECIAL_TOKENS)
        text = tokenizer.decode(ids[1:-1].tolist(), skip_special_tokens=False)
        hostile += "<|eos|>" in text
        assert text.startswith(excerpt) and len(text.encode()) == size
        total += count
    splits = content["splits"].values()
    assert hostile
    assert total == sum(split["tokens"] for split in splits) == sum(map(len, tokens.values()))
    assert sum(row[4] for row in rows) == sum(split["bytes"] for split in splits)
    assert len(content["splits"]["train"]["shards"]) > 1


@pytest.mark.slow
def test_no_training_text_shares_an_ngram_with_held_out_text(built: dict[str, Any]) -> None:
    folder = Path(built["folder"])
    content = corpus_json(built)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))

    def ngrams(split: str) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        for shard in content["splits"][split]["shards"]:
            ids = np.fromfile(folder / "shards" / shard["file"], content["dtype"])
            starts = np.fromfile((folder / "shards" / shard["file"]).with_suffix(".idx"), "<i8")
            for a, b in pairwise(starts):
                text = tokenizer.decode(ids[a + 1 : b - 1].tolist()).lower()
                words = "".join(c if c.isalnum() else " " for c in text).split()
                found.update(zip(*(words[i:] for i in range(8)), strict=False))
        return found

    heldout, train = ngrams("heldout"), ngrams("train")
    assert heldout and train
    assert not heldout.keys() & train.keys()


@pytest.mark.slow
def test_the_report_has_what_it_shows(built: dict[str, Any]) -> None:
    summary = built["result"]["summary"]
    assert summary["warnings"] == []
    check = summary["perplexity"]["self_check"]["auc"]
    assert check["shuffled"] > 0.7 and check["base64"] > 0.8
    histogram = summary["histogram"]
    assert len(histogram["edges"]) == len(histogram["kept"]) + 1
    dropped = summary["dropped"]
    assert sum(histogram["high"]) == dropped["perplexity_high"]
    assert sum(histogram["kept"]) == corpus_json(built)["splits"]["train"]["documents"]
    assert {"source", "part", "split", "documents_in", "documents_kept", "tokens"} <= set(
        summary["sources"][0]
    )
    assert len(summary["examples"]) >= 6
    assert any("not human feedback" in note for note in summary["notes"])


@pytest.mark.slow
def test_workers_and_the_order_and_names_of_files_change_no_byte(
    built: dict[str, Any], tmp_path: Path, texts: list[str]
) -> None:
    data = tmp_path / "elsewhere"
    data.mkdir()
    names = [path.name for path in sorted(built["data"].glob("train-*.jsonl"))]
    for name, other in zip(names, [*names[2:], *names[:2]], strict=True):
        lines = (built["data"] / name).read_bytes()
        (data / other).write_bytes(lines)
    for path in built["data"].glob("clean-*.jsonl"):
        (data / f"clean-{path.name}").write_bytes(path.read_bytes())
    again = run(tmp_path / "four", recipe(data, workers=4))
    assert again["fingerprint"] == built["fingerprint"]
    assert digests(again) == digests(built)
    assert again["content"] == built["content"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_kill_at_any_moment_loses_nothing(
    built: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    values = recipe(built["data"], workers=2)
    spec = make_spec(tmp_path, values)
    for _ in range(2):
        process = start(tmp_path, spec)
        try:
            process.wait(timeout=draw.uniform(0.3, 1.0) * built["seconds"])
        except subprocess.TimeoutExpired:
            if seed % 2:
                process.kill()  # its workers find out by themselves
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert digests(run(tmp_path, values)) == digests(built)


@pytest.mark.slow
def test_finished_parts_and_scores_are_not_made_again(
    built: dict[str, Any], tmp_path: Path
) -> None:
    spec = make_spec(tmp_path, recipe(built["data"], workers=1))
    results = []
    for number in range(2):
        out = tmp_path / f"out-{number}"
        out.mkdir()
        progress = Progress(tmp_path / "progress.jsonl")
        context = StageContext(
            spec=spec,
            params=CorpusParams.model_validate(spec.params),
            out=out,
            work=tmp_path / "work",
            inputs={},
            progress=progress,
            tracker=Tracker(None, tmp_path / "metrics.jsonl"),
            external=spec.external,
        )
        main.run(context)
        progress.close()
        made = {p.name: p.stat().st_mtime_ns for p in context.work.iterdir()}
        files = {p.relative_to(out): file_sha256(p) for p in out.rglob("*") if p.is_file()}
        results.append((made, files))
    assert results[0] == results[1]
    made = sorted(name.partition("-")[0] for name in results[0][0])
    assert Counter(made) == {"part": 6, "shares": 6, "heldout": 1, "perplexity": 1}
    assert {str(p): d for p, d in results[0][1].items()} == digests(built)


def outcome_of(home: Path, values: dict[str, Any]) -> Outcome:
    spec = make_spec(home, values)
    start(home, spec).wait(timeout=120)
    return Outcome.model_validate_json(Path(spec.outcome).read_text())


@pytest.mark.slow
def test_a_few_bad_records_are_counted_and_many_are_refused(
    built: dict[str, Any], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for path in built["data"].iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    with (data / "train-0.jsonl").open("ab") as file:
        file.write(b'not json\n{"text": "\xff"}\n')
    manifest = run(tmp_path / "few", recipe(data))
    assert corpus_json(manifest)["bad"] == {"web": {"not JSON": 1, "not UTF-8": 1}}
    assert corpus_json(manifest)["splits"] == corpus_json(built)["splits"]
    position = len((built["data"] / "train-0.jsonl").read_text().splitlines()) + 1
    assert manifest["result"]["summary"]["bad_positions"][0] == {
        "source": "web", "where": "train-0.jsonl", "position": position, "reason": "not JSON",
    }  # fmt: skip

    (data / "train-1.jsonl").write_bytes(b"not json\n" * 400)
    outcome = outcome_of(tmp_path / "many", recipe(data))
    assert outcome.exit_code == ExitCode.DATA
    assert "of its records cannot be read (401 not JSON, 1 not UTF-8)" in (outcome.error or "")


@pytest.mark.slow
def test_a_source_that_is_deleted_whole_is_reported(built: dict[str, Any], tmp_path: Path) -> None:
    values = recipe(built["data"])
    listing = tmp_path / "data" / "listing.jsonl"
    write_lines(listing, [f"x{i} = [{i}, {i + 1}]; y{i} = {{'a': {i}}}" * 3 for i in range(50)])
    values["sources"].append({"name": "listing", "kind": "files", "paths": [str(listing)]})
    summary = run(tmp_path / "run", values)["result"]["summary"]
    assert "source 'listing': not one document was kept" in summary["warnings"]
    assert summary["keep_rate"]["listing"] == 0


@pytest.mark.slow
def test_a_given_tokenizer_is_used_as_it_is(built: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(built["folder"]) / "tokenizer"
    values = recipe(built["data"], tokenizer={"folder": str(folder), "vocab_size": 600})
    again = run(tmp_path, values)
    assert again["external"]["tokenizer"]
    for name in ("tokenizer/tokenizer.json", "shards/train-00000.bin"):
        assert digests(again)[name] == digests(built)[name]


def test_identity_follows_content_and_not_names(tmp_path: Path, texts: list[str]) -> None:
    lay_out(tmp_path / "a", texts)
    lay_out(tmp_path / "b", texts)
    (tmp_path / "b/train-0.jsonl").rename(tmp_path / "b/train-9.jsonl")
    first = resolve(CorpusParams.model_validate(recipe(tmp_path / "a"))).digests
    assert resolve(CorpusParams.model_validate(recipe(tmp_path / "b"))).digests == first
    with (tmp_path / "b/train-9.jsonl").open("a") as file:
        file.write("\n")
    assert resolve(CorpusParams.model_validate(recipe(tmp_path / "b"))).digests != first


def test_a_missing_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file matches"):
        resolve(CorpusParams.model_validate(recipe(tmp_path)))


@pytest.mark.slow
def test_documentation_becomes_instructions_held_out_by_package(tmp_path: Path) -> None:
    values = {
        "sources": [
            {"name": "docs", "kind": "python-docs", "packages": ["numpy"], "unit": "paragraph"},
            {"name": "held", "kind": "python-docs", "packages": ["click", "fsspec"],
             "role": "heldout", "unit": "paragraph"},
        ],
        "perplexity": {"enabled": False},
        "tokenizer": {"vocab_size": 600},
    }  # fmt: skip
    manifest = run(tmp_path, values)
    folder = Path(manifest["folder"])

    def rows(name: str) -> list[dict[str, str]]:
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]

    train, heldout = rows("instructions/train.jsonl"), rows("instructions/heldout.jsonl")
    assert {row["source"] for row in train} == {"numpy"}
    assert {row["source"] for row in heldout} == {"click", "fsspec"}
    assert len(train) > 200 and len(heldout) > 50
    assert not {row["response"] for row in train} & {row["response"] for row in heldout}
    for name in ("preferences/train.jsonl", "preferences/heldout.jsonl"):
        found = rows(name)
        counts = Counter(row["kind"] for row in found)
        assert len(counts) == 4 and len(set(counts.values())) == 1
        assert set(found[0]) == {"id", "prompt", "chosen", "rejected", "kind", "source"}
    again = run(tmp_path / "again", {**values, "workers": 4})
    assert digests(again) == digests(manifest)
