"""Outcomes as plain text, as JSON, and as a dated Markdown report."""

import dataclasses
import datetime
import json

from harness import machine


def text(outcome):
    lines = []
    for table in filter(lambda one: one.printed, outcome.tables):
        widths = [max(len(row[i]) for row in [table.columns, *table.rows]) for i in range(len(table.columns))]
        for row in [table.columns, *table.rows]:
            lines.append("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        lines.append("")
    lines += ["  " + note for note in outcome.notes]
    return "\n".join(lines)


def write_json(path, name, outcomes):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "bench": name,
        "machine": machine.describe(),
        "parts": {part: {"bars": [dataclasses.asdict(bar) for bar in outcome.bars], "notes": outcome.notes,
                         "samples": outcome.samples}
                  for part, outcome in outcomes.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def write_markdown(folder, name, outcomes):
    today = datetime.date.today().isoformat()
    facts = machine.describe()
    lines = [
        f"# bench/run {name}, {today}",
        "",
        f"{facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB of memory, Linux {facts['kernel']}. "
        "Figures are medians, with the least and the greatest in brackets.",
    ]
    for outcome in outcomes.values():
        lines += ["", f"## {outcome.title}"]
        for table in outcome.tables:
            lines += ["", "| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
            lines += ["| " + " | ".join(row) + " |" for row in table.rows]
        lines += ["", *(f"- {note}" for note in outcome.notes)] if outcome.notes else []
        lines += ["", *(f"- {bar.line()}" for bar in outcome.bars)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{today}.md"
    path.write_text("\n".join(lines) + "\n")
    return path
