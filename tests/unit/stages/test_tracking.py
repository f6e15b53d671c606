"""Figures reach a real MLflow in batches; an MLflow that is away costs a stage nothing."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainwright.stages import tracking
from trainwright.stages.contract import TrackingIds
from trainwright.stages.tracking import Tracker


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A new MLflow on SQLite, whose tables take seconds to make: its URI, and an experiment."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    return uri, client.create_experiment("test", artifact_location=(folder / "runs").as_uri())


@pytest.fixture
def run(experiment: tuple[str, str]) -> TrackingIds:
    """A new run."""
    from mlflow import MlflowClient

    uri, number = experiment
    return TrackingIds(uri=uri, run_id=MlflowClient(uri).create_run(number).info.run_id)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(tracking, "_BACK_OFF_SECONDS", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(tracking, "_CLOSE_SECONDS", 10.0)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        yield silent.getsockname()[1]


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def history(run: TrackingIds, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=run.uri).get_metric_history(run.run_id, name)
    return sorted((metric.step, metric.value) for metric in found)


def test_every_figure_arrives_once_with_its_step(
    run: TrackingIds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    wanted = [(step, 1.0 / (step + 1)) for step in range(1500)]
    for step, loss in wanted:
        tracker.log({"loss": loss, "rate": 0.5}, step)
    tracker.close()
    assert history(run, "loss") == wanted
    assert len(history(run, "rate")) == 1500
    assert "did not reach MLflow" not in caplog.text
    assert [line["loss"] for line in lines(tmp_path / "metrics.jsonl")] == [x for _, x in wanted]


def test_a_figure_that_is_not_finite_stays_in_the_file_and_spoils_no_batch(
    run: TrackingIds, tmp_path: Path
) -> None:
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker.log({"loss": math.nan, "rate": 1.0}, 1)
    tracker.log({"loss": 2.0, "high": math.inf}, 2)
    tracker.close()
    assert history(run, "loss") == [(2, 2.0)]
    assert history(run, "rate") == [(1, 1.0)]
    assert math.isnan(lines(tmp_path / "metrics.jsonl")[0]["loss"])


def test_tags_and_small_files_reach_the_run(run: TrackingIds, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    (tmp_path / "report.md").write_text("# report")
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker.set_tags({"a": 1, "b": "old"})
    tracker.set_tags({"b": "new"})
    tracker.log_artifact(tmp_path / "report.md", "reports")
    tracker.close()
    client = MlflowClient(tracking_uri=run.uri)
    tags = client.get_run(run.run_id).data.tags
    assert (tags["a"], tags["b"]) == ("1", "new")
    assert [file.path for file in client.list_artifacts(run.run_id, "reports")] == [
        "reports/report.md"
    ]


def test_a_name_that_mlflow_refuses_does_not_hold_up_the_others(
    run: TrackingIds, tmp_path: Path, no_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker.log({"what?*": 1.0})
    tracker.flush()
    tracker.log({"loss": 1.0})
    tracker.close()
    assert history(run, "loss") == [(0, 1.0)]
    assert "MLflow refuses figures" in caplog.text
    assert "1 figures did not reach MLflow; they are in" in caplog.text


def test_a_run_that_is_gone_is_given_up(
    run: TrackingIds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(run.model_copy(update={"run_id": "0" * 32}), tmp_path / "metrics.jsonl")
    for step in range(20):
        tracker.log({"loss": 1.0}, step)
    tracker.close()
    assert "20 figures did not reach MLflow" in caplog.text


def test_an_mlflow_that_is_away_costs_one_warning_and_no_figure(
    tmp_path: Path, impatient: None, no_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    ids = TrackingIds(uri=f"http://127.0.0.1:{port}", run_id="r")
    tracker = Tracker(ids, tmp_path / "metrics.jsonl")
    with caplog.at_level(logging.WARNING, logger=tracking.__name__):
        for step in range(50):
            tracker.log({"loss": float(step)}, step)
            tracker.flush()
        tracker.set_tags({"a": 1})
        tracker.log_artifact(tmp_path / "metrics.jsonl")
        tracker.close()
    ours = [record.getMessage() for record in caplog.records if record.name == tracking.__name__]
    assert len(ours) == 2, ours
    assert "MLflow cannot be reached" in ours[0]
    assert "50 figures did not reach MLflow" in ours[1]
    assert [line["loss"] for line in lines(tmp_path / "metrics.jsonl")] == list(range(50))


@pytest.mark.timeout(120)
def test_an_mlflow_that_hangs_does_not_stop_the_stage(
    tmp_path: Path, impatient: None, silent_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`log` returns while the sender waits for an answer that never comes."""
    ids = TrackingIds(uri=f"http://127.0.0.1:{silent_port}", run_id="r")
    tracker = Tracker(ids, tmp_path / "metrics.jsonl")
    asked = threading.Event()
    tracker._send_batch = lambda run_id: asked.set() or Tracker._send_batch(tracker, run_id)  # type: ignore[method-assign]
    for step in range(2000):
        tracker.log({"loss": 1.0}, step)
    assert asked.wait(60)
    assert tracker._talking.locked(), "the sender is in the midst of a call"
    for step in range(2000):
        tracker.log({"loss": 1.0}, step)
    assert tracker._talking.locked(), "and 2000 more figures did not wait for it"
    tracker.close()
    assert len(lines(tmp_path / "metrics.jsonl")) == 4000
    assert "4000 figures did not reach MLflow" in caplog.text


def test_after_a_failure_mlflow_is_left_in_peace(tmp_path: Path, impatient: None) -> None:
    ids = TrackingIds(uri="http://127.0.0.1:9", run_id="r")
    tracker = Tracker(ids, tmp_path / "metrics.jsonl")
    calls = []

    def refuse(run_id: str) -> bool:
        calls.append(run_id)
        raise ConnectionError

    tracker._send_batch = refuse  # type: ignore[method-assign]
    for step in range(100):
        tracker.log({"loss": 1.0}, step)
        tracker.flush()
    assert len(calls) == 1
    tracker.close()
    assert len(calls) == 2, "a last try at the end"


def test_figures_arrive_once_mlflow_is_back(
    run: TrackingIds, tmp_path: Path, no_pauses: None
) -> None:
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    real, failures = tracker._mlflow, iter(range(3))

    def away_at_first() -> object:
        if next(failures, None) is not None:
            raise ConnectionError("away")
        return real()

    tracker._mlflow = away_at_first  # type: ignore[method-assign]
    for step in range(10):
        tracker.log({"loss": 1.0}, step)
        tracker.flush()
    tracker.close()
    assert history(run, "loss") == [(step, 1.0) for step in range(10)]


def test_the_buffer_is_bounded_and_what_was_cut_is_told(
    run: TrackingIds,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "_MAX_BUFFER", 10)
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker._retry_at = math.inf
    for step in range(25):
        tracker.log({"loss": 1.0}, step)
    tracker.close()
    assert history(run, "loss") == [(step, 1.0) for step in range(15, 25)]
    assert "15 figures did not reach MLflow" in caplog.text


def test_a_full_disk_ends_no_training(
    run: TrackingIds, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker._file.close()
    tracker._file = Path("/dev/full").open("a", buffering=1)  # noqa: SIM115
    for step in range(3):
        tracker.log({"loss": 1.0}, step)
    tracker.close()
    assert len(history(run, "loss")) == 3
    assert caplog.text.count("figures cannot be written") == 1


def test_without_a_run_the_file_is_all_there_is(tmp_path: Path) -> None:
    tracker = Tracker(None, tmp_path / "deep" / "metrics.jsonl")
    tracker.log({"loss": 1}, 3)
    tracker.set_tags({"a": 1})
    tracker.log_artifact(tmp_path)
    tracker.close()
    (line,) = lines(tmp_path / "deep" / "metrics.jsonl")
    assert (line["loss"], line["step"]) == (1.0, 3)


def test_the_users_own_limits_are_kept(
    run: TrackingIds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    tracker = Tracker(run, tmp_path / "metrics.jsonl")
    tracker.log({"loss": 1.0})
    tracker.close()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")


def test_user_and_password_come_from_the_environment_and_only_for_that_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trainwright.stages.tracking import _with_credentials

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@mlflow:5000")
    assert _with_credentials("http://mlflow:5000") == "http://me:hunter2@mlflow:5000"
    assert _with_credentials("http://elsewhere:5000") == "http://elsewhere:5000"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert _with_credentials("http://mlflow:5000") == "http://mlflow:5000"
