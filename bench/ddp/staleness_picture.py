"""The picture of docs/guides/synchronisation.md: draws the measurements as an SVG, without a plotting library."""

WIDTH, HEIGHT = 1080, 640
INK, FAINT, FAST, SLOW = "#222222", "#d9d9d9", "#7ba7d7", "#d1495b"
COLORS = {
    "synchronous": "#222222",
    "bounded staleness 1": "#2a78d6",
    "bounded staleness 4": "#e07b00",
    "asynchronous": "#c2185b",
    "local SGD, period 16": "#2e8b57",
}


def text(x, y, words, size=12, anchor="start", color=INK, weight="normal", turn=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}"{turn}>{words}</text>')


def line(x1, y1, x2, y2, color=FAINT, width=1.0):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width}"/>'


def box(x, y, width, height, color):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'


def histogram(x, y, width, height, name, all_ranks, slow, num_columns):
    """Bars that show which share of all gradients had each staleness, with the slow rank's share at the bottom."""
    total = sum(all_ranks)
    step = width / num_columns
    parts = [text(x, y - 6, name, weight="bold"), line(x, y + height, x + width, y + height, INK)]
    for percent in (50, 100):
        level = y + height * (1 - percent / 100)
        parts += [line(x, level, x + width, level), text(x - 6, level + 4, f"{percent}%", 10, "end")]
    for s in range(num_columns):
        count = all_ranks[s] if s < len(all_ranks) else 0
        of_slow = slow[s] if s < len(slow) else 0
        top = y + height
        for share, color in ((of_slow / total, SLOW), ((count - of_slow) / total, FAST)):
            top -= share * height
            if share > 0:
                parts.append(box(x + s * step + 2, top, step - 4, share * height, color))
        if count:
            above = top - 3 if count < 0.9 * total else top + 11  # does not overlap the name
            parts.append(text(x + (s + 0.5) * step, above, percent_text(count / total), 9, "middle"))
        parts.append(text(x + (s + 0.5) * step, y + height + 13, str(s), 10, "middle"))
    return parts


def percent_text(share):
    return f"{100 * share:.0f}%" if share >= 0.01 else "&lt;1%"


def ticks(greatest):
    """About five round numbers from 0 on."""
    step = next(unit * power for power in (1, 10, 100, 1000, 10_000, 100_000) for unit in (1, 2, 5)
                if unit * power * 6 >= greatest)
    return [i * step for i in range(int(greatest / step) + 1)]


def chart(x, y, width, height, title, unit, curves, field):
    """The loss over one field of the curves' points."""
    greatest = max(points[-1][field] for _, points in curves)
    losses = [point[2] for _, points in curves for point in points]
    low, high = int(min(losses) * 10) / 10, int(max(losses) * 10 + 1) / 10
    place = lambda value: x + width * value / greatest
    level = lambda loss: y + height * (high - loss) / (high - low)
    parts = [text(x, y - 8, title, weight="bold")]
    for i in range(round((high - low) * 5) + 1):
        loss = low + i / 5
        if loss <= high:
            parts += [line(x, level(loss), x + width, level(loss)),
                      text(x - 6, level(loss) + 4, f"{loss:.1f}", 10, "end")]
    for value in ticks(greatest):
        parts += [line(place(value), y + height, place(value), y + height + 4, INK),
                  text(place(value), y + height + 16, f"{value:,}", 10, "middle")]
    parts += [line(x, y + height, x + width, y + height, INK), text(x + width, y + height + 30, unit, 11, "end")]
    for name, points in curves:
        path = " ".join(f"{place(point[field]):.1f},{level(point[2]):.1f}" for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[name]}" stroke-width="1.8"/>')
        last = points[-1]
        parts.append(f'<circle cx="{place(last[field]):.1f}" cy="{level(last[2]):.1f}" r="3.5" fill="{COLORS[name]}"/>')
    return parts


def legend(x, y, entries):
    parts = []
    for i, (name, color) in enumerate(entries):
        parts += [box(x, y + 17 * i - 9, 14, 10, color), text(x + 20, y + 17 * i, name, 11)]
    return parts


def draw(histograms, curves):
    """`histograms`: name, counts of all ranks, counts of the slow rank. `curves`: name, points of samples, seconds and
    loss."""
    num_columns = max(len(all_ranks) for _, all_ranks, _ in histograms)
    parts = [text(30, 30, "Four ranks, the last of them three times slower", 17, weight="bold"),
             text(30, 50, "How stale gradients were: share of all gradients by the updates they were behind", 12)]
    parts += legend(290, 88, [("of the three fast ranks", FAST), ("of the slow rank", SLOW)])
    height = 82
    for i, (name, all_ranks, slow) in enumerate(histograms):
        parts += histogram(70, 96 + i * (height + 50), 400, height, name, all_ranks, slow, num_columns)
    parts.append(text(470, 96 + len(histograms) * (height + 50) - 18, "staleness", 11, "end"))
    parts += chart(560, 96, 490, 200, "Held-out loss over samples", "samples", curves, 0)
    parts += chart(560, 376, 490, 200, "Held-out loss over seconds, to as many samples", "seconds", curves, 1)
    parts += legend(900, 112, [(name, COLORS[name]) for name, _ in curves])
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fcfcfa"/>', *parts, "</svg>", ""])
