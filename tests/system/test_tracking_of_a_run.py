"""What MLflow shows of a finished run of the whole chain."""

from __future__ import annotations

from typing import Any

import pytest

from trainwright.flows.chain import CHAIN
from workbench import Workbench

pytestmark = [pytest.mark.slow, pytest.mark.server]


@pytest.fixture(scope="module")
def client(trained: Workbench) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{trained.home / 'mlflow.db'}")


@pytest.fixture(scope="module")
def runs(trained: Workbench, client: Any) -> dict[str, Any]:
    """MLflow's runs of the finished run, by step."""
    experiment = client.get_experiment_by_name("trainwright")
    found = client.search_runs(
        [experiment.experiment_id], f"tags.`trainwright.run` = '{trained.latest().id}'"
    )
    return {run.data.tags["trainwright.step"]: run for run in found}


def test_every_step_is_a_child_of_the_runs_own_and_all_are_finished(runs: dict[str, Any]) -> None:
    assert set(runs) == {"-", *(step.name.value for step in CHAIN)}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for step in CHAIN:
        tags = runs[step.name.value].data.tags
        assert tags["mlflow.parentRunId"] == runs["-"].info.run_id


def test_figures_are_those_of_the_records(trained: Workbench, runs: dict[str, Any]) -> None:
    for step, record in trained.steps().items():
        for name, value in record.result.metrics.items():
            assert runs[step].data.metrics[f"final_{name}"] == pytest.approx(value)
            assert runs["-"].data.metrics[f"{step}.{name}"] == pytest.approx(value)


def test_the_training_curve_is_there_step_by_step(client: Any, runs: dict[str, Any]) -> None:
    history = client.get_metric_history(runs["pretrain"].info.run_id, "loss")
    assert [point.step for point in history] == [10, 20, 30]


def test_report_samples_plots_and_manifests_are_attached(client: Any, runs: dict[str, Any]) -> None:
    names = {item.path for item in client.list_artifacts(runs["-"].info.run_id, "report")}
    assert {"report/report.html", "report/samples.json", "report/loss.png"} <= names
    assert any(name.startswith("report/corpus") for name in names)
    for step in CHAIN:
        items = client.list_artifacts(runs[step.name.value].info.run_id, "manifest")
        assert [item.path for item in items] == ["manifest/manifest.json"]


def test_the_int8_model_is_registered_and_promoted_by_the_gate(
    trained: Workbench, client: Any
) -> None:
    version = client.get_model_version_by_alias("trainwright-tiny", "validated")
    assert (
        version.version
        == client.get_model_version_by_alias("trainwright-tiny", "candidate").version
    )
    artifact = trained.steps()["quantize"].artifact
    assert artifact is not None
    assert version.tags["trainwright.artifact"] == artifact.uri
    assert version.tags["trainwright.artifact_digest"] == artifact.digest


def test_a_model_that_fails_the_gate_stays_a_candidate(copy_of_trained: Workbench) -> None:
    from mlflow import MlflowClient

    from workbench import TINY

    arguments = ["--set", "quantize.steps=5", "--set", "accept.max_size_ratio=0.01"]
    failed = copy_of_trained.command("run", TINY, *arguments)
    assert failed.returncode == 1
    client = MlflowClient(f"sqlite:///{copy_of_trained.home / 'mlflow.db'}")
    name = "trainwright-tiny"
    assert client.get_model_version_by_alias(name, "candidate").version == 2
    assert client.get_model_version_by_alias(name, "validated").version == 1
