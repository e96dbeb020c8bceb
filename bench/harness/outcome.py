"""What a part of a bench returns."""

import dataclasses


@dataclasses.dataclass
class Bar:
    name: str
    figure: str
    bar: str
    holds: bool
    judged: bool = True  # False: the figure means nothing here

    def line(self):
        verdict = "not judged" if not self.judged else "holds" if self.holds else "falls short"
        return f"{verdict}: {self.name}: {self.figure} (bar: {self.bar})"


def at_most(name, value, limit, show="{:.2f}"):
    return Bar(name, show.format(value), "at most " + show.format(limit), value <= limit)


def at_least(name, value, limit, show="{:.2f}"):
    return Bar(name, show.format(value), "at least " + show.format(limit), value >= limit)


@dataclasses.dataclass
class Table:
    columns: list[str]
    rows: list[list[str]]
    printed: bool = True  # False: for the report only, because the program under test has shown it


@dataclasses.dataclass
class Outcome:
    title: str
    tables: list[Table] = dataclasses.field(default_factory=list)
    bars: list[Bar] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    samples: list[dict] = dataclasses.field(default_factory=list)  # every single figure, for the JSON file
