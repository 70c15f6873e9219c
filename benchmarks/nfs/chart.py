"""A line chart with two panels: operations per second and latency against the round-trip time, as an SVG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stage import STYLE

LINE_STYLE = """
    .grid { stroke: #d0d7de; stroke-width: 1; }
    .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
    .read { stroke-dasharray: 6 4; }
    .first { stroke: #0969da; }
    .second { stroke: #1a7f37; }
    .third { stroke: #bc4c00; }
    @media (prefers-color-scheme: dark) {
      .grid { stroke: #30363d; }
      .first { stroke: #54aeff; }
      .second { stroke: #3fb950; }
      .third { stroke: #f0883e; }
    }
"""
WIDTH, HEIGHT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 880, 444, 118, 350, 196
LEGEND_TOP, COLUMN = 386, 236


@dataclass(frozen=True, slots=True)
class Series:
    """One line in both panels. `color` is a class of LINE_STYLE. `values` has a pair for each round-trip time."""

    name: str
    color: str
    dashed: bool
    values: list[tuple[float, float]]  # the share of the undelayed operations per second, and milliseconds


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its left edge, the index of its value in a pair, its title, and the labels of its grid lines."""

    left: int
    index: int
    title: str
    grid: dict[float, str]


def line_chart(title: str, note: str, round_trips: list[float], series: list[Series]) -> str:
    """Return an SVG of the series against the round-trip times in seconds."""
    top = max(value for line in series for _, value in line.values)
    steps = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if top / step <= 6)
    count = int(top / steps) + 1
    panels = (
        Panel(56, 0, "Operations per second", {share / 4: f"{25 * share} %" for share in range(5)}),
        Panel(488, 1, "Latency (median)", {steps * number: f"{steps * number:g} ms" for number in range(count + 1)}),
    )
    spoken = "; ".join(f"{line.name}: {', '.join(f'{share:.0%}' for share, _ in line.values)}" for line in series)
    head = 'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc"'
    lines = [
        f'<svg {head} viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'  <title id="title">{title}</title>',
        f'  <desc id="desc">{note}. Operations per second, of those without the round trip. {spoken}.</desc>',
        f"  <style>{STYLE}{LINE_STYLE}  </style>",
        f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        f'  <text class="title" x="24" y="40">{title}</text>',
        f'  <text class="small" x="24" y="62">{note}</text>',
    ]
    for panel in panels:
        lines += _panel(panel, round_trips, series)
    for number, line in enumerate(series):
        x, y = 24 + COLUMN * (number // 2), LEGEND_TOP + 26 * (number % 2)
        lines.append(f'  <path class="{_classes(line)}" d="M{x} {y}h30"/>')
        lines.append(f'  <text class="small" x="{x + 38}" y="{y + 4}">{line.name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _classes(line: Series) -> str:
    return f"line {line.color}{' read' if line.dashed else ''}"


def _panel(panel: Panel, round_trips: list[float], series: list[Series]) -> list[str]:
    to_x = _scale(0, max(round_trips), panel.left, panel.left + PLOT_WIDTH)
    to_y = _scale(0, max(panel.grid), TOP + PLOT_HEIGHT, TOP)
    lines = [f'  <text class="bold" x="{panel.left}" y="{TOP - 18}">{panel.title}</text>']
    for value, label in panel.grid.items():
        y = to_y(value)
        lines.append(f'  <path class="grid" d="M{panel.left} {y:g}h{PLOT_WIDTH}"/>')
        lines.append(f'  <text class="small end" x="{panel.left - 6}" y="{y + 4:g}">{label}</text>')
    for number, round_trip in enumerate(round_trips):
        label = f"{round_trip * 1000:g}{' ms' if number == len(round_trips) - 1 else ''}"
        x, y = to_x(round_trip), TOP + PLOT_HEIGHT + 20
        lines.append(f'  <text class="small" text-anchor="middle" x="{x:g}" y="{y}">{label}</text>')
    x, y = panel.left + PLOT_WIDTH // 2, TOP + PLOT_HEIGHT + 40
    lines.append(f'  <text class="small" text-anchor="middle" x="{x}" y="{y}">added round trip</text>')
    for line in series:
        points = (
            f"{to_x(at):.1f},{to_y(min(values[panel.index], max(panel.grid))):.1f}"
            for at, values in zip(round_trips, line.values, strict=True)
        )
        lines.append(f'  <polyline class="{_classes(line)}" points="{" ".join(points)}"/>')
    return lines


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (value - low) / (high - low) * (last - first)
