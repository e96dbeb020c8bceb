"""Cases of what tools/on_gpu reads and writes, for its --self-test."""

import dataclasses
import tempfile
from pathlib import Path

from gpu_report import ROOT, Conformance, Phase, Results, clean, conformance_of, markdown, test_of

CASE = '<testsuites><testsuite name="S"><testcase name="T" classname="S">{}</testcase></testsuite></testsuites>'
PASSED = CASE.format("")
FAILED = CASE.format('<failure message="x.cpp:7&#x0A;differs by 0.5" type=""/>')
SKIPPED = CASE.format('<skipped message="x.cpp:42&#x0A;needs 4 devices, the machine has 2"/>')
LISTING = "Running main() from gtest_main.cc\nModels/Parity.\n  Trains/0  # GetParam() = \"gpt\"\n  Trains/1\nPlain.\n  Works\n"


def read(report, code, output=""):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.xml"
        if report is not None:
            file.write_text(report)
        test = test_of("program", "S.T", file, 1.0, code, output)
    return test.outcome, test.text


def written(**fields):
    results = Results(True, "2000-01-01", "tools/on_gpu --simulate", **fields)
    return markdown(results).splitlines()[-1]


def cases(names_of):
    """(what, found, expected)"""
    good, bad = Conformance("threads, sim", 2, 10, 0), Conformance("threads, sim", 2, 0, 2)
    lines = "shm-cuda rank 0 of 2: 100 cases, 0 failed\nshm-cuda rank 1 of 2: 100 cases, 3 failed\n"
    held = {"name": "a bar", "figure": "1", "bar": "2", "holds": True, "judged": True}
    yield "a test that passes", read(PASSED, 0), ("passed", "")
    yield "a failure", read(FAILED, 1), ("failed", "x.cpp:7\ndiffers by 0.5")
    yield "a skip with its reason", read(SKIPPED, 0), ("skipped", "needs 4 devices, the machine has 2")
    yield "a crash before the report", read(None, -11, "said"), ("failed", "exit code -11\nsaid")
    yield "a crash behind the report", read(PASSED, -6)[0], "failed"
    yield "no end in time", read(None, None, "said"), ("failed", "no end in time\nsaid")
    yield "a filter that finds nothing", read("<testsuites/>", 0)[0], "failed"
    yield "names of tests", names_of(LISTING), ["Models/Parity.Trains/0", "Models/Parity.Trains/1", "Plain.Works"]
    yield "cases of all ranks", dataclasses.astuple(conformance_of("shm", 2, lines))[2:4], (200, 3)
    yield "a rank that says nothing", conformance_of("shm", 3, lines).failed, 4
    yield "no rank says anything", dataclasses.astuple(conformance_of("shm", 2, "FAILED: x"))[2:], (0, 2, "FAILED: x")
    yield "what is counted", written(phases=[Phase("build", "passed", 1)], conformance=[good, bad],
                                     bars=[held, held | {"holds": False}]), "3 passed, 2 failed"
    yield "a bar that is not judged", written(bars=[held | {"judged": False}]), "0 passed, 0 failed"
    yield "folders", clean(f"{ROOT}/tests/a.cpp {Path.home()}/x /tmp/some/where: no"), "/tests/a.cpp ~/x (a path): no"
    yield "identities", clean("GPU 0: NVIDIA X (UUID: GPU-1234)"), "GPU 0: NVIDIA X"


def self_test(names_of):
    wrong = [(what, found, expected) for what, found, expected in cases(names_of) if found != expected]
    for what, found, expected in wrong:
        print(f"self-test: {what}: found {found!r}, expected {expected!r}")
    count = sum(1 for _ in cases(names_of))
    print(f"on_gpu self-test: {count - len(wrong)} of {count} cases as expected")
    return 1 if wrong else 0
