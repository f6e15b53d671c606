"""The report shows what the records say, all of it, and nothing else."""

import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sample_run import METRICS, SAMPLES, sample_record, sample_run, sample_steps

from trainwright.flows import report
from trainwright.flows.chain import StepName
from trainwright.flows.findings import KEY_METRICS, findings, show_number, show_seconds
from trainwright.flows.page import cell, gather, read_series, show
from trainwright.flows.runs import RunState
from trainwright.stages.contract import ExitCode, StageResult, StageState

HOSTILE = '<script>alert(1)</script><img src=x onerror=alert(2)> & "q" \x1b[31mred\x07 \u202eflip'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def printed(steps, run=None, width=160, links=None) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    report.print_summary(console, run or sample_run(), steps, links)
    return console.file.getvalue()


class Page(HTMLParser):
    """Tags with their attributes, and all text, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def page(tmp_path: Path, steps, run=None, extra=None) -> Page:
    path = report.write_html(run or sample_run(), steps, tmp_path / "r" / "report.html", extra)
    return Page(path.read_text(encoding="utf-8"))


# -- what was learned

BREAK = [
    (0, StepName.VALIDATE, "bigram_loss", 4.60),
    (0, StepName.VALIDATE, "unigram_loss", 4.60),
    (1, StepName.INSTRUCT, "answer_loss_after", 4.61),
    (2, StepName.ALIGN, "baseline_word_overlap", 0.771),
    (2, StepName.ALIGN, "baseline_longer", 0.9),
    (3, StepName.ALIGN, "reward_after", 0.2),
    (3, StepName.ALIGN, "kl", float("nan")),
    (4, StepName.QUANTIZE, "perplexity_ratio", 1.0201),
    (5, StepName.QUANTIZE, "size_ratio", 1 / 3),
]


def changed(step: StepName, name: str, value: float | None):
    steps = sample_steps()
    metrics = {**METRICS[step]}
    if value is None:
        del metrics[name]
    else:
        metrics[name] = value
    steps[step] = sample_record(step, result=StageResult(metrics=metrics))
    return steps


def test_every_claim_holds_on_a_good_run() -> None:
    assert [f.verdict for f in findings(sample_steps())] == ["holds"] * 6


@pytest.mark.parametrize(("index", "step", "name", "value"), BREAK)
def test_a_claim_falls_with_the_figure_that_breaks_it_and_no_other_does(
    index: int, step: StepName, name: str, value: float
) -> None:
    verdicts = [f.verdict for f in findings(changed(step, name, value))]
    assert verdicts == ["does NOT hold" if i == index else "holds" for i in range(6)]
    assert "does NOT hold" in printed(changed(step, name, value))


@pytest.mark.parametrize(("index", "step", "name", "_value"), BREAK)
def test_a_missing_figure_is_not_measured_rather_than_true_or_false(
    index: int, step: StepName, name: str, _value: float
) -> None:
    assert findings(changed(step, name, None))[index].verdict == "not measured"


def test_figures_of_a_failed_step_prove_nothing() -> None:
    steps = sample_steps()
    steps[StepName.QUANTIZE] = sample_record(StepName.QUANTIZE, state=StageState.FAILED)
    assert [f.verdict for f in findings(steps)][4:] == ["not measured"] * 2


def test_without_records_nothing_is_claimed() -> None:
    assert {f.verdict for f in findings({})} == {"not measured"}


# -- the terminal


@pytest.mark.parametrize("width", [60, 100, 160])
def test_every_stage_its_key_figures_and_its_artifact_are_printed(width: int) -> None:
    text = printed(sample_steps(), width=width)
    flat = " ".join(text.split())
    for name, record in sample_steps().items():
        assert name in text
        assert record.artifact is not None and record.artifact.digest[:12] in text
        for metric in KEY_METRICS[name]:
            assert f"{metric} {show_number(METRICS[name][metric], metric)}" in flat


def test_reused_and_repeated_steps_are_told_apart() -> None:
    steps = sample_steps()
    steps[StepName.CORPUS] = sample_record(StepName.CORPUS, state=StageState.REUSED, attempts=0)
    steps[StepName.PRETRAIN] = sample_record(StepName.PRETRAIN, attempts=3)
    lines = printed(steps).splitlines()
    assert lines[1].split()[:2] == ["corpus", "reused"]
    assert any(line.startswith("pretrain") and "ran (3 tries)" in line for line in lines)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ExitCode.USAGE, "change the recipe"),
        (ExitCode.GATE, "change the recipe"),
        (ExitCode.DATA, "mend the data"),
        (ExitCode.TRANSIENT, "all tries are used up"),
        (ExitCode.NODE_FAULT, "all tries are used up"),
        (ExitCode.BREAKER, "a person decides"),
        (ExitCode.UNEXPECTED, "trainwright logs"),
        (None, "trainwright logs"),
    ],
)
def test_a_failed_step_shows_its_sentence_and_what_to_do(code: ExitCode | None, says: str) -> None:
    record = sample_record(
        StepName.ALIGN, state=StageState.FAILED, exit_code=code, error="the reward is [bold]NaN[/]"
    )
    text = printed({StepName.ALIGN: record}, sample_run(state=RunState.FAILED))
    assert "the reward is [bold]NaN[/]" in text
    assert says in text
    assert f"trainwright rerun {record.run_id} align --onward" in text


def test_samples_before_and_after_tuning_are_printed() -> None:
    text = printed(sample_steps())
    for part in (SAMPLES[0]["before"], SAMPLES[0]["after"], "before LoRA", "after RLHF"):
        assert part in text


def test_the_page_and_the_servers_are_named_when_they_are_there() -> None:
    links = {"prefect": "http://p/runs/flow-run/1", "mlflow": "http://m"}
    text = printed(sample_steps(), sample_run(report="/tmp/r/report.html"), links=links)
    assert "file:///tmp/r/report.html" in text
    assert "http://p/runs/flow-run/1" in text and "http://m" in text
    assert "trainwright up" not in text
    assert "trainwright up" in printed(sample_steps())


def test_hostile_text_cannot_steer_the_terminal() -> None:
    samples = [{"prompt": HOSTILE, "before": "[red]x[/red]", "after": "\x9b31m\x1b]0;title\x07"}]
    record = sample_record(StepName.INSTRUCT, result=StageResult(summary={"samples": samples}))
    failed = sample_record(StepName.ALIGN, state=StageState.FAILED, error=HOSTILE)
    text = printed({StepName.INSTRUCT: record, StepName.ALIGN: failed})
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "[red]x[/red]" in text


# -- Markdown


def test_markdown_has_a_row_a_stage_and_hostile_text_stays_text() -> None:
    steps = sample_steps()
    steps[StepName.ALIGN] = sample_record(
        StepName.ALIGN, state=StageState.FAILED, error=f"a | b\nc {HOSTILE} [x](http://evil) `"
    )
    text = report.markdown(sample_run(), steps)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(steps)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert not re.search(r"(?<!\\)<|(?<!\\)\]\(", text)


# -- the page


def test_the_page_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    found = page(tmp_path, sample_steps())
    for tag, attributes in found.tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith("#")
    policy = [
        a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy and "default-src 'none'" in (policy[0] or "")


def test_samples_are_kept_beside_the_page_for_programs(tmp_path: Path) -> None:
    steps = sample_steps()
    said = [{"prompt": "Return the", "completion": "\ud800 list"}]
    steps[StepName.VALIDATE] = sample_record(
        StepName.VALIDATE, result=StageResult(metrics=METRICS[StepName.VALIDATE], samples=said)
    )
    page(tmp_path, steps)
    kept = json.loads((tmp_path / "r" / "samples.json").read_text(encoding="utf-8"))
    assert kept["validate"]["completions"] == said
    assert kept["instruct"]["before_and_after"] == SAMPLES
    assert "corpus" not in kept


def test_a_run_without_samples_leaves_no_file_of_samples(tmp_path: Path) -> None:
    page(tmp_path, {StepName.CORPUS: sample_record(StepName.CORPUS)})
    assert not (tmp_path / "r" / "samples.json").exists()


def test_hostile_text_is_text_wherever_it_stands(tmp_path: Path) -> None:
    plain = page(tmp_path, sample_steps(), extra={"x": "y"})
    summary = {
        HOSTILE: HOSTILE,
        "nested": {HOSTILE: {"deep": {"deeper": {HOSTILE: [HOSTILE]}}}},
        "rows": [{HOSTILE: HOSTILE}],
        "texts": [HOSTILE * 3],
        "dropped": {HOSTILE: 5},
        "keep_rate": {HOSTILE: 0.5},
        "samples": [dict.fromkeys(("prompt", "before", "after"), HOSTILE)],
    }
    steps = {
        name: sample_record(
            name,
            error=HOSTILE,
            why=HOSTILE,
            log=HOSTILE,
            params={HOSTILE: HOSTILE},
            external={HOSTILE: HOSTILE},
            result=StageResult(metrics={HOSTILE: 1.0}, summary=summary),
        )
        for name in StepName
    }
    run = sample_run(recipe={HOSTILE: HOSTILE}, recipe_name=HOSTILE, error=HOSTILE)
    found = page(tmp_path, steps, run, {HOSTILE: HOSTILE})
    assert {tag for tag, _ in found.tags} - {tag for tag, _ in plain.tags} <= {
        "pre",
        "details",
        "section",
    }
    assert not [a for _, attributes in found.tags for a in attributes if a.startswith("on")]
    assert "<script>alert(1)</script>" in found.text
    assert "\x1b" not in found.text and "\u202e" not in found.text


def test_every_figure_and_every_summary_value_is_on_the_page(tmp_path: Path) -> None:
    summary = {
        "note": "seen by nobody else",
        "table": [{"kind": "spliced", "pairs": 208}, {"kind": "shuffled", "other": 0.5385}],
        "deep": {"er": {"and": {"deeper": {"still": 12345}}}},
        "flag": True,
        "nothing": None,
        "empty": [],
        "curve": [[1, 2.5], [2, 2.25]],
    }
    steps = sample_steps()
    steps[StepName.VALIDATE] = sample_record(
        StepName.VALIDATE, result=StageResult(metrics={"odd_figure": 0.125}, summary=summary)
    )
    text = page(tmp_path, steps, extra={"appendix": {"answer": 42}}).text
    for part in ("odd figure", "0.125", "seen by nobody else", "spliced", "208", "0.5385",
                 "12,345", "yes", "2.25", "appendix", "42"):  # fmt: skip
        assert part in text, part


def test_recipe_lineage_and_parameters_are_on_the_page(tmp_path: Path) -> None:
    steps = sample_steps()
    corpus = steps[StepName.CORPUS].artifact
    assert corpus is not None
    steps[StepName.PRETRAIN] = sample_record(
        StepName.PRETRAIN,
        inputs={"corpus": corpus},
        params={"optimization": {"learning_rate": 0.003}},
    )
    text = page(tmp_path, steps).text
    assert "kl_coefficient: 0.1" in text
    assert "learning rate" in text and "0.003" in text
    assert corpus.digest[:12] in text


def test_a_failed_step_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "align.log"
    log.write_text("\n".join(f"line {i}" for i in range(500)) + "\nValueError: <boom>\n")
    record = sample_record(StepName.ALIGN, state=StageState.FAILED, error="broken", log=str(log))
    text = page(tmp_path, {StepName.ALIGN: record}, sample_run(state=RunState.FAILED)).text
    assert "ValueError: <boom>" in text and "line 499" in text and "line 100" not in text


@pytest.mark.parametrize("steps", [{}, {StepName.CORPUS: sample_record(StepName.CORPUS)}])
def test_a_run_that_hardly_began_has_a_page(tmp_path: Path, steps) -> None:
    assert "demo-20261201" in page(tmp_path, steps).text


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    record = sample_record(StepName.CORPUS, result=StageResult(summary={"text": "a\ud800b"}))
    assert "text" in page(tmp_path, {StepName.CORPUS: record}).text


# -- plots


def test_plots_come_from_records_and_only_where_there_is_something_to_draw(
    tmp_path: Path, home: Path
) -> None:
    assert [p.name for p in gather(sample_run(), {}).plots] == []
    run, steps = sample_run(), sample_steps()
    summary = {
        "dropped": {"exact_duplicate": 12, "markup": 3},
        "keep_rate": {"docs": 0.25},
        "histogram": {"edges": [1, 2, 4], "kept": [3, 1], "low": [1, 0], "high": [0, 2]},
    }
    steps[StepName.CORPUS] = sample_record(StepName.CORPUS, result=StageResult(summary=summary))
    folder = home / "logs" / run.id
    folder.mkdir(parents=True)
    rows = [{"step": 1, "loss": 7.5}, {"step": 2, "loss": 6.5, "heldout_loss": 6.75}]
    text = "\n".join(json.dumps(row) for row in rows)
    (folder / "pretrain.metrics.jsonl").write_text(text + '\n{"step": 3, "lo')
    report.write_html(run, steps, tmp_path / "out" / "report.html")
    names = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert names == {"loss", "corpus-dropped", "corpus-kept", "corpus-perplexity", "int8"}
    for path in (tmp_path / "out").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_broken_plot_data_draws_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    bad = {
        "dropped": [1, 2],
        "keep_rate": {"a": "NaN", "b": None},
        "histogram": {"edges": [1, 2], "kept": [1, 2, 3]},
        "curve": {"train": [[1], "x", [1, "NaN"], [2, None]], "heldout": 3},
        "history": [3, {"reward": "x"}],
    }
    steps = {name: sample_record(name, result=StageResult(summary=bad)) for name in StepName}
    assert gather(sample_run(), steps).plots == []
    assert page(tmp_path, steps).tags


def test_the_same_plot_is_the_same_bytes(home: Path) -> None:
    one, two = (gather(sample_run(), sample_steps()).plots[0] for _ in range(2))
    assert one.svg() == two.svg()
    assert "var(--ink)" in one.svg()


def test_a_series_leaves_out_broken_lines_and_a_missing_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "loss": 2}\n[1]\n\xff\n{"step": 2\n{"step": 3, "loss": 1}\n')
    assert [row["step"] for row in read_series(path)] == [1, 3]
    assert read_series(tmp_path / "none") == []


# -- values


@pytest.mark.parametrize(
    ("value", "name", "shown"),
    [
        (0.1, "", "0.1"),
        (1622491, "tokens", "1,622,491"),
        (4.602134, "loss", "4.602"),
        (2904.23, "tokens_per_s", "2,904"),
        (5251072, "bytes_float32", "5.25 MB"),
        (2.01, "bits_per_byte", "2.01"),
        (float("nan"), "", "nan"),
        (float("-inf"), "", "-inf"),
        (-0.000123456, "", "-0.0001235"),
    ],
)
def test_numbers_as_a_person_reads_them(value: float, name: str, shown: str) -> None:
    assert show_number(value, name) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(8.34, "8.3 s"), (59.99, "60.0 s"), (125, "2 min 05 s"), (11220, "3 h 07 min")],
)
def test_times_as_a_person_reads_them(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


def test_values_of_every_kind_are_shown() -> None:
    assert cell(True) == "yes" and "—" in cell(None) and "none" in cell([])
    assert show([{"a": 1}, {"b": 2}]).count("<tr>") == 3
    assert "<table" in show({"a": 1})
    assert show("two\nlines") == '<p class="text">two\nlines</p>'


def test_gate_checks_and_kinds_of_pairs_stand_in_the_open(tmp_path: Path) -> None:
    checks = [{"name": "heldout_loss", "value": 4.6, "threshold": "finite", "passed": True}]
    kinds = [{"kind": "spliced", "pairs": 208, "reward_model": 0.77, "word_overlap": 0.66}]
    steps = sample_steps()
    for name, summary in (
        (StepName.ACCEPT, {"checks": checks}),
        (StepName.ALIGN, {"rm_accuracy_by_kind": kinds}),
        (StepName.VALIDATE, {"checks": "broken"}),
    ):
        steps[name] = sample_record(name, result=StageResult(summary=summary))
    text = page(tmp_path, steps).text
    opened = text[text.index("Tables") : text.index("Everything the stages said")]
    assert "spliced" in opened and "0.77" in opened
    assert "Gate of the export" in opened and "finite" in opened
    assert "Gate after pretraining" not in opened


def test_commands_are_shown_as_they_can_be_typed_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "trainwright")])
    assert report.command() == ".venv/bin/trainwright"
    monkeypatch.setattr("sys.argv", ["/elsewhere/trainwright"])
    assert report.command() == "/elsewhere/trainwright"
    monkeypatch.setattr("sys.argv", ["/usr/bin/pytest"])
    assert report.command() == "trainwright"
