"""Places that cannot be used: a sentence and exit code 2, never a traceback."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from trainwright.flows.cli import main

TINY = str(Path(__file__).parents[2] / "recipes" / "tiny.yaml")


def call(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2
    return str(result.output)


@pytest.mark.parametrize("command", [["plan", TINY], ["run", TINY], ["up"]])
def test_a_home_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINWRIGHT_STORE", raising=False)
    assert "TRAINWRIGHT_HOME" in call(*command)


def test_a_home_of_a_user_who_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", "~nobody-of-that-name/x")
    assert "TRAINWRIGHT_HOME" in call("status")


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a[1]", "a*", "a\nb"])
def test_a_home_that_a_database_would_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / name))
    assert "name another folder in TRAINWRIGHT_HOME" in call("status")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--limit", "0"],
        ["logs", "latest", "-n", "0"],
        ["gc", "--delete", "--older-than", "nan"],
        ["gc", "--keep-runs", "0"],
        ["report", "--html", "/"],
        ["status", ""],
        ["logs", "../../etc"],
        ["rerun", "latest", "../x"],
    ],
)
def test_numbers_and_names_that_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    call(*command)


@pytest.mark.parametrize("store", ["file:relative", "s3:bucket", "ftp://x/y", "s3://"])
def test_a_store_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("TRAINWRIGHT_STORE", store)
    assert "store" in call("status")


def test_a_store_with_credentials_in_its_uri_is_refused_without_showing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("TRAINWRIGHT_STORE", "s3://key:hunter2@bucket/prefix")
    said = call("status")
    assert "AWS_ACCESS_KEY_ID" in said and "hunter2" not in said


def test_a_run_is_refused_before_prefect_starts_where_the_store_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("")
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINWRIGHT_STORE", str(tmp_path / "store"))
    assert "store" in call("run", TINY)
    assert not (tmp_path / "home" / "prefect").exists()
