"""What observing costs: the same steps without an observer and with one that has all outputs on, on two ranks."""

import json
import subprocess
import tempfile

from harness.machine import Foreign
from harness.outcome import Outcome, Table, at_most
from harness.ranks import Ranks, free_port, variables
from harness.spread import median, ratios, spread

SIZE = 2
ROUNDS = 30
TIMEOUT = 60
BAR = 0.5  # percent


def measure(context):
    context.settle()
    rounds = context.rounds or ROUNDS
    program = context.build / "bench" / "training" / "bench_watching"
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        port = free_port()
        for rank in range(SIZE):
            ranks.start([program, rounds, folder], variables(rank, SIZE, "127.0.0.1", port), stdin=subprocess.PIPE)
        # The ranks stay until their input ends, so that their processor time can be separated from that of others.
        with Foreign([process.pid for process in ranks.processes]) as foreign:
            lines = [ranks.processes[0].stdout.readline() for _ in range(rounds + 1)]
            if not all(lines):
                ranks.fail("a rank has ended")
        ranks.wait(TIMEOUT)
    *samples, calls = [json.loads(line) for line in lines]
    plain, watched = ([one[kind] for one in samples] for kind in ("plain", "watched"))
    lost = [100 * (ratio - 1) for ratio in ratios(watched, plain)]
    thread = [100 * one["thread"] / one["plain"] for one in samples]
    # In a step: 10 spans, 64 calls and a record.
    own = 100 * (10 * calls["span_ns"] + 64 * calls["call_ns"] + calls["record_ns"]) * 1e-9 / median(plain)
    return Outcome(
        "A step with and without watching: 10 spans, 64 calls, every sink",
        tables=[Table(["", "a step"], [
            ["without", spread(plain, 1e3, "ms")],
            ["with", spread(watched, 1e3, "ms")],
            ["lost by the clock", spread(lost, digits=3, unit="%")],
            ["processor time in the training thread", f"{own:.3f} % of the step"],
            ["processor time of the observer's thread", spread(thread, digits=3, unit="% of the step")],
        ])],
        # By processor time: both cores are busy, so this is the time that training loses. By the clock, two rounds
        # differ by more than the cost that is to be measured.
        bars=[at_most("time lost to watching, % of the step", own + median(thread), BAR, "{:.3f}")],
        notes=[f"{rounds} rounds of 21 steps each way, {SIZE} ranks on all cores; others used {foreign.cores:.2f} cores.",
               f"A span costs {calls['span_ns']} ns, a call {calls['call_ns']} ns, a record {calls['record_ns']} ns.",
               "The bar is judged by the processor's time that watching takes while all cores compute."],
        samples=[*samples, calls])
