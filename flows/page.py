"""The report page: one HTML file that loads nothing, so that it can be kept, sent and opened anywhere.

Texts in it come from documents and models and are hostile until escaped: every value goes through
`esc`, and a content security policy forbids the browser to load or run anything at all.
"""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.flows import plots
from trainwright.flows.chain import StepName
from trainwright.flows.findings import (
    KEY_METRICS,
    Finding,
    Steps,
    findings,
    show_number,
    show_seconds,
)
from trainwright.flows.page_style import STYLE
from trainwright.flows.plots import Plot
from trainwright.flows.report import advice, outcome, printable, tuning_samples
from trainwright.flows.runs import RunRecord, RunState
from trainwright.stages.artifact import Manifest, open_artifact
from trainwright.stages.contract import StageError, StageRecord, StageState
from trainwright.stages.settings import settings

log = logging.getLogger(__name__)

_LOG_LINES = 60
_TABLE_ROWS = 500
_LONG_LIST = 24
_LONG_ITEM = 48
_LONG_TEXT = 2000

_STEP_PILLS = {
    StageState.COMPLETED: "good",
    StageState.REUSED: "",
    StageState.RUNNING: "",
    StageState.CANCELLED: "warn",
}
_RUN_PILLS = {RunState.COMPLETED: "good", RunState.RUNNING: "", RunState.CANCELLED: "warn"}


@dataclass
class Material:
    """All that the page is made of: the records, and what lies beside them."""

    run: RunRecord
    steps: Steps
    manifests: dict[StepName, Manifest] = field(default_factory=dict)
    series: dict[StepName, list[dict[str, Any]]] = field(default_factory=dict)
    logs: dict[StepName, str] = field(default_factory=dict)
    plots: list[Plot] = field(default_factory=list)

    def pngs(self) -> dict[str, bytes]:
        """The plots as PNG, by name."""
        return {plot.name: plot.png() for plot in self.plots}


def gather(run: RunRecord, steps: Steps) -> Material:
    """Read manifests, series and the logs of failed steps; what cannot be read is left out."""
    material = Material(run, steps)
    for name, record in steps.items():
        manifest = _manifest(record)
        if manifest is not None:
            material.manifests[name] = manifest
        maker = manifest.run_id if manifest is not None else record.run_id
        path = settings().logs / maker / f"{name}.metrics.jsonl"
        material.series[name] = read_series(path)
        if not record.done and record.log is not None:
            material.logs[name] = _tail(Path(record.log))
    material.plots = draw_plots(material)
    return material


def _manifest(record: StageRecord) -> Manifest | None:
    if record.artifact is None:
        return None
    try:
        return open_artifact(record.artifact.uri).manifest()
    except (StageError, OSError) as error:
        log.warning("the report goes without the manifest of %s: %s", record.step, error)
        return None


def read_series(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; broken ones (of a killed stage) are left out."""
    rows = []
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    rows.append(row)
    except OSError:
        return []
    return rows


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 100_000))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return f"{path} cannot be read"
    return "\n".join(lines[-_LOG_LINES:])


# -- plots


def draw_plots(material: Material) -> list[Plot]:
    """The plots that the records have something for."""
    corpus, align = _summary(material, StepName.CORPUS), _summary(material, StepName.ALIGN)
    rl = material.series.get(StepName.ALIGN, [])
    history = align.get("history")
    rows = history if isinstance(history, list) else []
    found = [
        _loss(material),
        plots.keep_plot(corpus.get("keep_rate")),
        plots.dropped_plot(corpus.get("dropped")),
        plots.histogram_plot(corpus.get("histogram")),
        plots.tuning_plot(plots.series(material.series.get(StepName.INSTRUCT, []), "loss")),
        plots.reward_plot(
            _history(rows, "reward") or plots.series(rl, "reward"),
            _history(rows, "kl") or plots.series(rl, "kl"),
        ),
        plots.int8_plot(_metrics(material, StepName.QUANTIZE)),
    ]
    return [plot for plot in found if plot is not None]


def _summary(material: Material, name: StepName) -> dict[str, Any]:
    record = material.steps.get(name)
    return {} if record is None else record.result.summary


def _metrics(material: Material, name: StepName) -> dict[str, float]:
    record = material.steps.get(name)
    return {} if record is None else record.result.metrics


def _loss(material: Material) -> Plot | None:
    """The whole curve from the summary; of a step that has none yet, from its series."""
    curve = _summary(material, StepName.PRETRAIN).get("curve")
    known = curve if isinstance(curve, dict) else {}
    rows = material.series.get(StepName.PRETRAIN, [])
    gate = _metrics(material, StepName.VALIDATE)
    floors = {
        name: gate[key]
        for name, key in (("unigram", "unigram_loss"), ("bigram", "bigram_loss"))
        if plots.number(gate.get(key)) is not None
    }
    return plots.loss_plot(
        plots.points(known.get("train")) or plots.series(rows, "loss"),
        plots.points(known.get("heldout")) or plots.series(rows, "heldout_loss"),
        floors,
    )


def _history(rows: list[Any], name: str) -> plots.Points:
    pairs = [
        [row.get("iteration", at + 1), row.get(name)]
        for at, row in enumerate(rows)
        if isinstance(row, dict)
    ]
    return plots.points(pairs)


# -- values of any kind


def esc(value: Any) -> str:
    """Text as HTML: nothing in it is markup, nothing in it turns the writing direction."""
    return html.escape(printable(str(value)), quote=True)


def show(value: Any, depth: int = 0, name: str = "") -> str:
    """Any JSON value: a dict as a table or sections, a list of dicts as a table, text as text."""
    if isinstance(value, Mapping):
        return _show_dict(value, depth)
    if isinstance(value, list):
        return _show_list(value, depth, name)
    text = cell(value, name)
    return f'<p class="text">{text}</p>' if isinstance(value, str) else f"<p>{text}</p>"


def cell(value: Any, name: str = "") -> str:
    """A value within a table's cell or a line."""
    if value is None or value == "":
        return '<span class="dim">—</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return esc(show_number(value, name))
    if isinstance(value, Mapping):
        return "<br>".join(f"{esc(_words(k))}: {cell(v, str(k))}" for k, v in value.items())
    if isinstance(value, list):
        if not value:
            return '<span class="dim">none</span>'
        shown = [cell(item, name) for item in value[:_LONG_LIST]]
        more = f" … {len(value) - _LONG_LIST} more" if len(value) > _LONG_LIST else ""
        return ", ".join(shown) + more
    text = str(value)
    return esc(text if len(text) <= _LONG_TEXT else f"{text[:_LONG_TEXT]}…")


def _words(key: Any) -> str:
    return str(key).replace("_", " ")


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return False
    if isinstance(value, list):
        short = len(value) <= _LONG_LIST
        return short and all(_is_plain(v) and len(str(v)) <= _LONG_ITEM for v in value)
    return True


def _is_small(value: Any) -> bool:
    """Whether it is a table of names and short values, which can stand beside others."""
    return isinstance(value, Mapping) and all(
        _is_plain(inner) and len(str(inner)) <= 40 for inner in value.values()
    )


def _show_dict(value: Mapping[Any, Any], depth: int) -> str:
    if not value:
        return '<p class="dim">nothing</p>'
    plain = {k: v for k, v in value.items() if _is_plain(v)}
    parts = [_pairs(plain)] if plain else []
    for key, inner in value.items():
        if key in plain:
            continue
        if depth >= 3:
            parts.append(
                f"<details><summary>{esc(_words(key))}</summary>{show(inner, depth)}</details>"
            )
        else:
            level = "h3" if depth == 0 else "h4"
            shown = f"<{level}>{esc(_words(key))}</{level}>{show(inner, depth + 1, str(key))}"
            parts.append(f'<div class="part">{shown}</div>' if _is_small(inner) else shown)
    return "".join(parts)


def _pairs(values: Mapping[Any, Any]) -> str:
    rows = "".join(
        f"<tr><th>{esc(_words(k))}</th><td{_align(v)}>{cell(v, str(k))}</td></tr>"
        for k, v in values.items()
    )
    return f'<div class="scroll pairs"><table>{rows}</table></div>'


def _align(value: Any) -> str:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return ' class="num"' if numeric else ""


def _show_list(value: list[Any], depth: int, name: str) -> str:
    if not value:
        return '<p class="dim">none</p>'
    if all(isinstance(item, Mapping) for item in value):
        return table(value)
    if all(isinstance(item, str) for item in value):
        return "".join(f'<p class="text">{cell(item)}</p>' for item in value[:_TABLE_ROWS])
    if _is_plain(value):
        return f"<p>{cell(value, name)}</p>"
    text = esc(json.dumps(value, ensure_ascii=False, default=str)[:50_000])
    return f"<details><summary>{len(value)} values</summary><pre>{text}</pre></details>"


def table(rows: list[Any]) -> str:
    """A list of dicts as a table whose columns are all their keys."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{esc(_words(column))}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td{_align(row.get(c))}>{cell(row.get(c), str(c))}</td>" for c in columns)
        + "</tr>"
        for row in rows[:_TABLE_ROWS]
    )
    more = len(rows) - _TABLE_ROWS
    note = f'<p class="dim">… {more:,} more rows</p>' if more > 0 else ""
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>{note}'


# -- sections


def render(material: Material, extra: Mapping[str, Any]) -> str:
    """The whole page."""
    title = esc(f"{material.run.id}: {material.run.state.value}")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    sections = [
        _header(material.run),
        _failures(material),
        _learned(findings(material.steps)),
        _stages(material),
        _plots(material.plots),
        _tables(material),
        _samples(material.steps),
        _details(material),
        *(f"<h2>{esc(_words(key))}</h2>{show(value)}" for key, value in extra.items()),
        _recipe(material.run),
        _lineage(material),
        _environment(material),
        f"<footer>Made by trainwright from the records of run {esc(material.run.id)}.</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(sections)}</main></body></html>\n"
    )


def _header(run: RunRecord) -> str:
    pill = _RUN_PILLS.get(run.state, "bad")
    took = ""
    if run.ended_at is not None:
        took = f" · {show_seconds((run.ended_at - run.started_at).total_seconds())}"
    started = f"{run.started_at:%Y-%m-%d %H:%M} UTC"
    what = f"recipe {run.recipe_name} · {run.kind} · {started}{took} · {run.owner.host}"
    return (
        f'<header><h1>{esc(run.id)}</h1><span class="pill {pill}">{esc(run.state.value)}</span>'
        f'<p class="dim">{esc(what)}</p></header>'
    )


def _failures(material: Material) -> str:
    parts = []
    for name, record in material.steps.items():
        if not record.error:
            continue
        tail = material.logs.get(name)
        shown = (
            "<details open><summary>end of its log</summary>"
            f'<pre class="tail">{esc(tail)}</pre></details>'
        )
        parts.append(
            f'<section class="card failure"><p><b>{esc(name.value)} {esc(outcome(record))}:</b> '
            f"{esc(record.error)}</p><p>{esc(advice(record))}</p>"
            f'<p class="dim">log: <code>{esc(record.log or "none")}</code></p>'
            f"{shown if tail else ''}</section>"
        )
    if not parts and material.run.error:
        parts.append(f'<section class="card failure"><p>{esc(material.run.error)}</p></section>')
    return "".join(parts)


def _learned(found: list[Finding]) -> str:
    pills = {True: "good", False: "bad", None: "warn"}
    cards = "".join(
        f'<div class="card claim"><span class="pill {pills[f.holds]}">{esc(f.verdict)}</span>'
        f'<p>{esc(f.text)}</p><p class="figures">{esc(f.shown)}</p></div>'
        for f in found
    )
    return f'<h2>What was learned</h2><div class="grid">{cards}</div>'


def _stages(material: Material) -> str:
    if not material.steps:
        return '<h2>Stages</h2><p class="dim">No stage was reached.</p>'
    rows = []
    for name, record in material.steps.items():
        pill = _STEP_PILLS.get(record.state, "bad")
        digest = f"<code>{esc(record.artifact.digest[:12])}</code><br>" if record.artifact else ""
        rows.append(
            f"<tr><td><b>{esc(name.value)}</b></td>"
            f'<td><span class="pill {pill}">{esc(outcome(record))}</span></td>'
            f'<td class="num">{esc(show_seconds(record.seconds))}</td>'
            f'<td class="metrics">{_key_metrics(record)}</td>'
            f'<td class="place">{digest}<code class="dim">{esc(_full_place(record))}</code></td></tr>'
        )
    head = "".join(f"<th>{h}</th>" for h in ("stage", "", "time", "key metrics", "artifact"))
    return (
        f'<h2>Stages</h2><div class="scroll stages"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _full_place(record: StageRecord) -> str:
    """A page is read from elsewhere, so a path in it is whole."""
    return record.artifact.uri.removeprefix("file://") if record.artifact else ""


def _key_metrics(record: StageRecord) -> str:
    if record.error:
        return esc(record.error)
    metrics = record.result.metrics
    return " ".join(
        f'<span class="metric">{esc(_words(n))} <b>{esc(show_number(metrics[n], n))}</b></span>'
        for n in KEY_METRICS.get(StepName(record.step), ())
        if n in metrics
    )


def _plots(found: list[Plot]) -> str:
    if not found:
        return ""
    figures = "".join(
        f'<figure class="card"><figcaption>{esc(p.title)}</figcaption>{p.svg()}</figure>'
        for p in found
    )
    return f'<h2>Plots</h2><div class="plots">{figures}</div>'


_TABLES = (
    (StepName.CORPUS, "sources", "Sources: what came in and what was kept"),
    (StepName.VALIDATE, "checks", "Gate after pretraining"),
    (StepName.ALIGN, "rm_accuracy_by_kind", "Reward model, by kind of pair: share judged right"),
    (StepName.ACCEPT, "checks", "Gate of the export"),
)


def _tables(material: Material) -> str:
    """The tables of the stages that a reader wants first; all others are under `_details`."""
    parts = []
    for name, key, title in _TABLES:
        rows = _summary(material, name).get(key)
        if isinstance(rows, list) and rows and all(isinstance(row, Mapping) for row in rows):
            parts.append(f"<h3>{esc(title)}</h3>{table(rows)}")
    return f"<h2>Tables</h2>{''.join(parts)}" if parts else ""


def _samples(steps: Steps) -> str:
    cards = []
    for title, sample in tuning_samples(steps, everything=True):
        cards.append(
            f'<div class="card"><h4>prompt</h4><p>{esc(sample["prompt"])}</p>'
            f'<h4>before {esc(title)}</h4><p class="sample">{esc(sample["before"] or "(nothing)")}</p>'
            f'<h4>after {esc(title)}</h4><p class="sample after">{esc(sample["after"] or "(nothing)")}'
            "</p></div>"
        )
    return f'<h2>Samples</h2><div class="grid">{"".join(cards)}</div>' if cards else ""


def _details(material: Material) -> str:
    parts = []
    for name, record in material.steps.items():
        result = record.result
        body = [f"<h3>figures</h3>{show(result.metrics)}" if result.metrics else ""]
        body.append(show(result.summary) if result.summary else "")
        if result.samples:
            body.append(f"<h3>samples</h3>{table([s.model_dump() for s in result.samples])}")
        body.append(f"<h3>parameters</h3>{show(record.params, 1)}" if record.params else "")
        why = f' <span class="dim">{esc(record.why)}</span>' if record.why else ""
        parts.append(f"<details><summary>{esc(name.value)}{why}</summary>{''.join(body)}</details>")
    return f"<h2>Everything the stages said</h2>{''.join(parts)}" if parts else ""


def _recipe(run: RunRecord) -> str:
    import yaml

    text = yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True)
    options = {k: v for k, v in run.options.items() if v}
    shown = f"<p>Asked for: {cell(options)}</p>" if options else ""
    return (
        f"<h2>Recipe</h2>{shown}<details><summary>{esc(run.recipe_name)}</summary>"
        f"<pre>{esc(text)}</pre></details>"
    )


def _lineage(material: Material) -> str:
    rows = []
    for name, record in material.steps.items():
        manifest = material.manifests.get(name)
        rows.append(
            {
                "stage": name.value,
                "fingerprint": record.fingerprint[:12],
                "artifact": record.artifact.digest[:12] if record.artifact else None,
                "inputs": {key: ref.digest[:12] for key, ref in record.inputs.items()} or None,
                "read from outside": {k: v[:12] for k, v in record.external.items()} or None,
                "made by run": manifest.run_id if manifest else None,
                "files": len(manifest.files) if manifest else None,
                "bytes": sum(f.size for f in manifest.files) if manifest else None,
            }
        )
    return f"<h2>Lineage</h2>{table(rows)}" if rows else ""


def _environment(material: Material) -> str:
    """One row a setting where all stages agree; a column a stage where they differ."""
    found = {
        name.value: {
            "trainwright": manifest.code_version, **manifest.environment,
            **({"image": manifest.image} if manifest.image else {}),
        }
        for name, manifest in material.manifests.items()
    }  # fmt: skip
    if not found:
        return ""
    keys = list(dict.fromkeys(key for values in found.values() for key in values))
    same = {}
    different = []
    for key in keys:
        values = {step: environment.get(key) for step, environment in found.items()}
        if len(set(values.values())) == 1:
            same[key] = next(iter(values.values()))
        else:
            different.append({"": key, **values})
    return f"<h2>Environment</h2>{_pairs(same)}{table(different) if different else ''}"
