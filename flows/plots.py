"""Plots of a run, drawn from its records; None where the records have nothing to draw.

A `Plot` gives inline SVG whose colours are the page's own (CSS variables, so that they follow the light
or dark scheme), and PNG for MLflow. matplotlib is used without pyplot: no window, no global state.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]

# Colours of the PNGs, and what they become in the page.
INK, PAPER, GRID = "#1d2733", "#ffffff", "#d5dbe1"
BLUE, ORANGE, GREEN, RED = "#2a6fb8", "#d9730d", "#2e8b57", "#c43d3d"
_VARIABLES = {
    INK: "var(--ink)", GRID: "var(--rule)", PAPER: "none", BLUE: "var(--blue)",
    ORANGE: "var(--orange)", GREEN: "var(--green)", RED: "var(--red)",
}  # fmt: skip

_WIDTH, _HEIGHT = 5.2, 3.1
"""Inches: narrow, so that letters stay readable where a page is 390 pixels wide."""


@dataclass(frozen=True)
class Plot:
    """One plot: `name` is its file's, `title` its caption; `draw` fills the axes."""

    name: str
    title: str
    draw: Callable[[Axes], None]
    height: float = _HEIGHT

    def svg(self) -> str:
        """Inline SVG, coloured by the page's variables. Every text in it is escaped by matplotlib."""
        text = self._render("svg", {"Date": None, "Creator": None}).decode()
        text = text[text.index("<svg") :]
        for colour, variable in _VARIABLES.items():
            text = text.replace(colour, variable)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        # The page scales it: fixed sizes would not fit a telephone.
        text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
        text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
        return text.replace("<svg ", '<svg role="img" ', 1)

    def png(self) -> bytes:
        """PNG on white."""
        return self._render("png", {"Software": None}, dpi=160)

    def _render(self, kind: str, metadata: dict[str, Any], dpi: int = 72) -> bytes:
        import matplotlib
        from matplotlib.figure import Figure

        style: dict[Any, Any] = {
            "svg.fonttype": "none", "svg.hashsalt": self.name, "font.size": 9.5,
            "font.family": "sans-serif", "text.parse_math": False, "text.color": INK,
            "axes.labelcolor": INK, "axes.edgecolor": GRID, "xtick.color": INK,
            "ytick.color": INK, "axes.facecolor": PAPER, "figure.facecolor": PAPER,
            "axes.spines.top": False, "axes.spines.right": False, "grid.color": GRID,
            "grid.linewidth": 0.6, "legend.frameon": False, "axes.axisbelow": True,
        }  # fmt: skip
        with matplotlib.rc_context(style):
            figure = Figure(figsize=(_WIDTH, self.height), layout="constrained")
            axes = figure.add_subplot()
            self.draw(axes)
            output = io.BytesIO()
            figure.savefig(output, format=kind, metadata=metadata, dpi=dpi)
        return output.getvalue()


def label(text: str, longest: int = 28) -> str:
    """A text from the data as a label: one line, nothing that a font or XML cannot show."""
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def number(value: Any) -> float | None:
    """A finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def points(rows: Any) -> Points:
    """Pairs of finite numbers, sorted, from `[[x, y], ...]` or `{x: y}`."""
    pairs = rows.items() if isinstance(rows, Mapping) else rows if isinstance(rows, list) else []
    found = []
    for pair in pairs:
        if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
            x, y = number(pair[0]), number(pair[1])
            if x is not None and y is not None:
                found.append((x, y))
    return sorted(found)


def series(rows: list[dict[str, Any]], name: str) -> Points:
    """`(step, value)` of a figure in lines of a metrics file; the last line of a step counts."""
    found: dict[float, float] = {}
    for row in rows:
        step, value = number(row.get("step")), number(row.get(name))
        if step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def _lines(axes: Axes, what: list[tuple[str, Points, str]]) -> None:
    for name, line, colour in what:
        if line:
            xs, ys = zip(*line, strict=True)
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=name)
    axes.grid(axis="y")


def loss_plot(
    train: Points, heldout: Points, floors: Mapping[str, float] | None = None
) -> Plot | None:
    """Pretraining loss by step, held-out points, and the n-gram models' losses as lines."""
    if not train and not heldout:
        return None

    def draw(axes: Axes) -> None:
        _lines(axes, [("training", train, BLUE)])
        if heldout:
            xs, ys = zip(*heldout, strict=True)
            axes.plot(xs, ys, "o-", color=ORANGE, linewidth=1, markersize=4, label="held-out")
        for (name, value), dash in zip((floors or {}).items(), ("--", ":"), strict=False):
            axes.axhline(value, color=INK, linewidth=1, linestyle=dash, label=label(name))
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats a token")
        axes.grid(axis="y")
        axes.legend()

    return Plot("loss", "Pretraining loss", draw)


def dropped_plot(dropped: Any) -> Plot | None:
    """Documents dropped, by first reason."""
    counts = _counts(dropped)
    if not counts:
        return None
    top = sorted(counts.items(), key=lambda item: item[1])[-16:]
    return _bars("corpus-dropped", "Documents dropped, by first reason", top, RED, "documents")


def keep_plot(rates: Any) -> Plot | None:
    """Share of documents kept, by source."""
    shares = _counts(rates)
    if not shares:
        return None
    rows = [(name, 100 * share) for name, share in sorted(shares.items(), reverse=True)][-24:]
    return _bars("corpus-kept", "Documents kept, by source", rows, GREEN, "% of documents read")


def _counts(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    found = {str(name): number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _bars(name: str, title: str, rows: list[tuple[str, float]], colour: str, unit: str) -> Plot:
    def draw(axes: Axes) -> None:
        places = range(len(rows))
        bars = axes.barh(places, [value for _, value in rows], color=colour, height=0.66)
        axes.set_yticks(places, [label(text.replace("_", " "), 22) for text, _ in rows])
        axes.bar_label(bars, [_short(value) for _, value in rows], padding=3, fontsize=8.5)
        axes.margins(x=0.14)
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.tick_params(axis="y", length=0)

    return Plot(name, title, draw, height=max(1.5, 0.8 + 0.24 * len(rows)))


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"


def histogram_plot(histogram: Any) -> Plot | None:
    """Perplexities of documents, kept and cut; `edges`, and counts `kept`, `low`, `high` a bin."""
    if not isinstance(histogram, Mapping) or not isinstance(histogram.get("edges"), list):
        return None
    edges = [number(edge) for edge in histogram["edges"]]
    bins = len(edges) - 1
    parts = [("kept", GREEN), ("low", ORANGE), ("high", RED)]
    counts = {
        name: [number(v) or 0.0 for v in histogram[name]]
        for name, _ in parts
        if isinstance(histogram.get(name), list) and len(histogram[name]) == bins
    }
    if bins < 1 or None in edges or not counts:
        return None
    places = [edge for edge in edges if edge is not None]
    cuts = thresholds(histogram.get("thresholds"))
    names = {"kept": "kept", "low": "cut: too predictable", "high": "cut: too surprising"}

    def draw(axes: Axes) -> None:
        widths = [right - left for left, right in pairwise(places)]
        floor = [0.0] * bins
        for name, colour in parts:
            if name in counts:
                axes.bar(
                    places[:-1], counts[name], widths, floor, align="edge", color=colour,
                    label=names[name],
                )  # fmt: skip
                floor = [a + b for a, b in zip(floor, counts[name], strict=True)]
        _cuts(axes, cuts)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.set_xlabel("perplexity a word, by the reference model")
        axes.set_ylabel("documents")
        axes.grid(axis="y")
        _legend_above(axes)

    return Plot("corpus-perplexity", "Perplexity filter", draw)


def thresholds(rows: Any) -> list[float]:
    """Every perplexity at which a source and length is cut, low or high."""
    found = set()
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, Mapping):
            found |= {number(row.get("low")), number(row.get("high"))}
    return sorted(value for value in found if value is not None and value > 0)


def _cuts(axes: Axes, cuts: list[float]) -> None:
    for at, value in enumerate(cuts):
        name = "thresholds, by source and length" if at == 0 else None
        axes.axvline(value, color=INK, linewidth=0.8, linestyle="--", alpha=0.7, label=name)


def _legend_above(axes: Axes) -> None:
    """A legend over the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, columnspacing=1.2)


def _whole_steps(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def reward_plot(reward: Points, kl: Points) -> Plot | None:
    """Reward and KL to the reference, by PPO iteration."""
    if not reward:
        return None

    def draw(axes: Axes) -> None:
        _lines(axes, [("reward", reward, BLUE), ("KL to the reference, nats", kl, ORANGE)])
        axes.set_xlabel("PPO iteration")
        _whole_steps(axes)
        _legend_above(axes)

    return Plot("reward", "Reward and KL while PPO trains", draw)


def tuning_plot(loss: Points) -> Plot | None:
    """Loss on answer tokens while LoRA trains."""
    if not loss:
        return None

    def draw(axes: Axes) -> None:
        _lines(axes, [("loss", loss, BLUE)])
        axes.set_xlabel("step")
        axes.set_ylabel("answer loss, nats a token")
        _whole_steps(axes)

    return Plot("instruct-loss", "LoRA instruction tuning", draw)


def int8_plot(metrics: Mapping[str, float]) -> Plot | None:
    """Perplexity against file size: float32, int8 after training, int8 without it."""
    wanted = [
        ("float32", "bytes_float32", "perplexity_float", BLUE),
        ("int8, trained", "bytes_int8", "perplexity_int8", GREEN),
        ("int8, not trained", "bytes_int8", "perplexity_ptq", ORANGE),
    ]
    rows = []
    for name, size, perplexity, colour in wanted:
        x, y = number(metrics.get(size)), number(metrics.get(perplexity))
        if x is not None and y is not None:
            rows.append((name, x / 1e6, y, colour))
    if len(rows) < 2:
        return None

    def draw(axes: Axes) -> None:
        for name, x, y, colour in rows:
            axes.scatter([x], [y], s=55, color=colour, label=f"{name}: {y:.2f} at {x:.3g} MB")
        axes.set_xlabel("file size, MB")
        axes.set_ylabel("held-out perplexity")
        axes.set_xlim(0, 1.15 * max(x for _, x, _, _ in rows))
        # Never less than 3% around the float model: a difference of nothing must look like nothing.
        heights = [y for _, _, y, _ in rows]
        axes.set_ylim(min(*heights, 0.97 * heights[0]), max(*heights, 1.03 * heights[0]))
        axes.margins(y=0.1)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.grid()
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0))

    return Plot("int8", "int8 against float32", draw)
