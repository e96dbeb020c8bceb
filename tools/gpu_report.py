"""What tools/on_gpu has seen, as one file: Markdown for people, with the same as JSON at its end."""

import dataclasses
import getpass
import json
import os
import re
import socket
import xml.etree.ElementTree as tree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_LINES = 40  # of a failure's text
CONFORMANCE = re.compile(r"^(\S+) rank \d+ of (\d+): (\d+) cases, (\d+) failed$")


@dataclasses.dataclass
class Test:
    """One test of one program. `outcome`: passed, failed or skipped, where `text` says why."""
    program: str
    name: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


@dataclasses.dataclass
class Conformance:
    """One run of the conformance cases."""
    name: str
    ranks: int
    cases: int
    failed: int
    text: str = ""


@dataclasses.dataclass
class Phase:
    name: str
    outcome: str  # passed or failed
    seconds: float
    text: str = ""  # what a failure wrote


@dataclasses.dataclass
class Results:
    simulated: bool
    started: str
    command: str
    facts: dict = dataclasses.field(default_factory=dict)  # name: value
    topology: str = ""
    phases: list = dataclasses.field(default_factory=list)
    tests: list = dataclasses.field(default_factory=list)
    conformance: list = dataclasses.field(default_factory=list)
    bench_text: str = ""
    bars: list = dataclasses.field(default_factory=list)

    def counts(self):
        """Passed and failed: tests, runs of the conformance cases, judged bars, and phases."""
        judged = [bar for bar in self.bars if bar["judged"]]
        passed = (sum(one.outcome == "passed" for one in self.tests + self.phases)
                  + sum(not one.failed and one.cases > 0 for one in self.conformance) + sum(bar["holds"] for bar in judged))
        failed = (sum(one.outcome == "failed" for one in self.tests + self.phases)
                  + sum(one.failed > 0 or one.cases == 0 for one in self.conformance)
                  + sum(not bar["holds"] for bar in judged))
        return passed, failed


def clean(text):
    """Without what tells of the machine's owner: folders, the user's and the host's name, identities of GPUs."""
    text = text.replace(str(ROOT), "").replace(str(Path.home()), "~")
    text = re.sub(r"\(UUID: [^)]*\)", "", text)
    text = re.sub(r"(?<![\w.:/~])/(?:home|root|tmp|mnt|data|scratch|Users)/[^\s:'\"]*", "(a path)", text)
    for name in {socket.gethostname(), getpass.getuser()} - {"root", "localhost", ""}:
        if len(name) > 2:
            text = re.sub(rf"\b{re.escape(name)}\b", "(a name)", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def end_of(text):
    return "\n".join(clean(text).splitlines()[-MOST_LINES:])


def test_of(program, name, report, seconds, code, output):
    """From GoogleTest's report of a run of this one test. Without one, the program did not come to its end."""
    if not report.exists():
        why = "no end in time" if code is None else f"exit code {code}"
        return Test(program, name, "failed", seconds, f"{why}\n{end_of(output)}")
    cases = tree.parse(report).getroot().findall(".//testcase")
    failures = [failure.get("message", "") for case in cases for failure in case.findall("failure")]
    skips = [skip.get("message", "") for case in cases for skip in case.findall("skipped")]
    if failures:
        return Test(program, name, "failed", seconds, end_of("\n".join(failures)))
    if code != 0 or len(cases) != 1:
        return Test(program, name, "failed", seconds, f"exit code {code}, {len(cases)} tests\n{end_of(output)}")
    if skips:
        # In front of the reason GoogleTest puts the place in the sources.
        return Test(program, name, "skipped", seconds, skips[0].strip().splitlines()[-1])
    return Test(program, name, "passed", seconds)


def conformance_of(name, ranks, output):
    lines = [CONFORMANCE.match(line) for line in output.splitlines()]
    found = [line for line in lines if line]
    cases, failed = sum(int(line[3]) for line in found), sum(int(line[4]) for line in found)
    # A rank that did not come to its end has written no line.
    failed += max(0, ranks - len(found))
    return Conformance(name, ranks, cases, failed, "" if not failed else end_of(output))


def table(columns, rows):
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [columns, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(columns), *lines[1:], ""]


def fenced(text):
    return ["```text", *text.splitlines(), "```", ""]


def tests_part(results):
    def count(program, outcome):
        return sum(one.program == program and one.outcome == outcome for one in results.tests)

    programs = list(dict.fromkeys(one.program for one in results.tests))
    lines = ["## Tests on devices", "", "Each test ran in a process of its own.", ""]
    lines += table(["program", "passed", "failed", "skipped", "seconds"],
                   [[program, count(program, "passed"), count(program, "failed"), count(program, "skipped"),
                     f"{sum(one.seconds for one in results.tests if one.program == program):.0f}"]
                    for program in programs])
    for one in results.tests:
        if one.outcome == "failed":
            lines += [f"### Failed: {one.program}, {one.name}", "", *fenced(one.text)]
    skipped = [one for one in results.tests if one.outcome == "skipped"]
    lines += [f"Skipped tests: {len(skipped)}.", ""]
    for reason in sorted({one.text for one in skipped}):
        names = [one.name for one in skipped if one.text == reason]
        lines += [f"- {reason} ({len(names)}): {', '.join(names)}"]
    return lines + ([""] if skipped else [])


def conformance_part(results):
    lines = ["## Conformance of collectives on devices", "",
             "Every collective and message, six types, against a reference that each rank computes by itself.", ""]
    lines += table(["backend", "ranks", "cases", "failed"],
                   [[one.name, one.ranks, one.cases, one.failed] for one in results.conformance])
    for one in results.conformance:
        if one.text:
            lines += [f"### Failed: {one.name} on {one.ranks} ranks", "", *fenced(one.text)]
    return lines


def markdown(results):
    passed, failed = results.counts()
    place = "the simulated device, in the place of GPUs" if results.simulated else "GPUs"
    lines = [f"# tools/on_gpu: {place}", "", f"{results.started}, by `{results.command}`.", ""]
    if results.simulated:
        lines += ["**No GPU was used and nothing was built for CUDA.** This shows that the programs run, and what the file of a "
                  "machine with GPUs looks like. Its times say nothing about GPUs.", ""]
    lines += table(["phase", "outcome", "seconds"],
                   [[one.name, one.outcome, f"{one.seconds:.0f}"] for one in results.phases])
    for one in results.phases:
        if one.text:
            lines += [f"### {one.name}", "", *fenced(one.text)]
    lines += ["## The machine", "", *table(["what", "found"], list(results.facts.items()))]
    if results.topology:
        lines += fenced(results.topology)
    if results.tests:
        lines += tests_part(results)
    if results.conformance:
        lines += conformance_part(results)
    if results.bench_text:
        lines += ["## bench/run gpu", "", *fenced(results.bench_text)]
    lines += ["## For programs", "", "```json", json.dumps(dataclasses.asdict(results) | {
        "bench_text": None, "topology": None}, indent=None), "```", "", f"{passed} passed, {failed} failed"]
    return "\n".join(lines) + "\n"


def write(path, results):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(markdown(results))
    partial.replace(path)
