#!/usr/bin/env python3
"""Draws the losses of runs of train_gpt over their steps, as an SVG.

  curves.py OUT.svg NAME=STEPS.jsonl...
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT = 760, 400
LEFT, TOP, RIGHT, BOTTOM = 60, 50, 30, 50
INK, FAINT = "#222222", "#d9d9d9"
COLORS = ["#2a78d6", "#e07b00", "#2e8b57", "#c2185b"]


def read(path):
    """The points of the training loss, and of the validation's."""
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    steps = [line for line in lines if "step" in line]  # the first one describes the run
    return ([(step["step"], step["loss"]) for step in steps],
            [(step["step"], step["scalars"]["validation/loss"]) for step in steps if "scalars" in step])


def smoothed(points, window=10):
    """Means of neighbouring steps: a single batch says little."""
    return [(points[i][0], sum(loss for _, loss in points[max(0, i - window + 1):i + 1]) / min(i + 1, window))
            for i in range(len(points))]


def text(x, y, words, size=12, anchor="start", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{INK}" '
            f'font-weight="{weight}">{words}</text>')


def line(x1, y1, x2, y2, color):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


class Axes:
    def __init__(self, last_step, highest):
        self.last_step, self.highest = last_step, highest

    def place(self, step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last_step

    def level(self, loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(loss, self.highest) / self.highest)

    def draw(self):
        parts = []
        for loss in range(int(self.highest) + 1):
            parts += [line(LEFT, self.level(loss), WIDTH - RIGHT, self.level(loss), INK if loss == 0 else FAINT),
                      text(LEFT - 8, self.level(loss) + 4, str(loss), anchor="end")]
        for i in range(7):
            step = round(self.last_step * i / 6)
            parts.append(text(self.place(step), HEIGHT - BOTTOM + 18, f"{step:,}", anchor="middle"))
        return parts + [text(WIDTH - RIGHT, HEIGHT - 12, "steps", anchor="end")]

    def curve(self, points, color, width):
        path = " ".join(f"{self.place(step):.1f},{self.level(loss):.1f}" for step, loss in points)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def draw(runs):
    axes = Axes(max(points[-1][0] for _, points, _ in runs), 6)
    parts = [text(LEFT, 26, "Loss in nats a byte: validation (dots), training (lines, means of 10 steps)", 14,
                  weight="bold"), *axes.draw()]
    for i, (name, training, validation) in enumerate(runs):
        color = COLORS[i % len(COLORS)]
        # What is drawn later is thinner, so that equal curves are seen to be equal.
        radius = 6 - 3 * i
        parts.append(axes.curve(smoothed(training), color, 3 - 2 * i))
        parts += [f'<circle cx="{axes.place(step):.1f}" cy="{axes.level(loss):.1f}" r="{radius}" fill="{color}"/>'
                  for step, loss in validation]
        label = name if not validation else f"{name}: {validation[-1][1]:.3f} at the end"
        parts += [f'<circle cx="{WIDTH - 270}" cy="{TOP + 16 + 20 * i}" r="{radius}" fill="{color}"/>',
                  text(WIDTH - 258, TOP + 20 + 20 * i, label)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fcfcfa"/>', *parts, "</svg>", ""])


def main(argv):
    if len(argv) < 3 or any("=" not in run for run in argv[2:]):
        sys.exit(__doc__)
    runs = [(name, *read(path)) for name, path in (run.split("=", 1) for run in argv[2:])]
    Path(argv[1]).write_text(draw(runs))


if __name__ == "__main__":
    main(sys.argv)
