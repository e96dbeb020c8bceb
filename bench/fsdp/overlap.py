"""How much of the communication is hidden behind compute, from a trace of both ranks, and its picture."""

import subprocess
import sys
import tempfile
from pathlib import Path

from fsdp.training import commands
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_least
from harness.spread import median, spread

SIZE = 2
WARM_UP_STEPS = 3
STEPS = 8
HIDDEN = 70  # percent
BACKENDS = ["gloo", "shm"]


def union(intervals):
    """How long at least one of the intervals lasts."""
    total, end = 0, None
    for start, stop in sorted(intervals):
        if end is None or start > end:
            total, end = total + stop - start, stop
        elif stop > end:
            total, end = total + stop - end, stop
    return total


def figures_of_step(slices, step):
    """The figures of one step of one rank, in milliseconds: `under_way` is the time during which at least one call was
    under way, `blocked` the time that the training thread spent in calls."""
    calls = [one for one in slices if one["category"] == "communication" and one["rank"] == step["rank"]
             and one["name"] != "barrier" and step["start"] <= one["start"] < step["end"]]
    under_way = union((one["start"], one["end"]) for one in calls) / 1e6
    blocked = sum(one["annotations"]["blocked_ns"] for one in calls) / 1e6
    exposed = min(1.0, blocked / under_way) if calls else 0.0
    return {"rank": step["rank"], "step": step["name"], "ms": (step["end"] - step["start"]) / 1e6, "calls": len(calls),
            "under_way": under_way, "blocked": blocked, "hidden": 100 * (1 - exposed)}


def trace(context, backend, folder):
    """Traces all ranks into one file. Returns its slices, its path, and the cores that other processes used."""
    sys.path.insert(0, str(context.root / "tests" / "observe"))
    import decoders
    with Answering(commands(context)[backend], SIZE) as ranks:
        ranks.ask("fsdp", WARM_UP_STEPS)
        _, cores = ranks.ask(f"trace:{folder}", STEPS)
        ranks.finish()
    merged = Path(folder) / "merged.pftrace"
    files = [f"{folder}/trace.rank{rank}.pftrace" for rank in range(SIZE)]
    subprocess.run([context.build / "apps" / "tessera" / "tessera", "trace", "merge", merged, *files], check=True,
                   stdout=subprocess.DEVNULL)
    return decoders.trace_slices(merged), merged, cores


def draw(context, merged):
    picture = context.root / "docs" / "pictures" / "fsdp_trace.svg"
    subprocess.run([context.python, context.root / "tools" / "draw_trace", merged, picture, "--step", str(STEPS // 2),
                    "--title", "A sharded step on Gloo: gathers run ahead of compute, reduce-scatters behind it"],
                   check=True)
    return picture


def measure(context):
    context.settle()
    samples, notes = [], []
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory() as folder:
            slices, merged, cores = trace(context, backend, folder)
            steps = [one for one in slices if one["category"] == "step"]
            samples += [{"backend": backend, **figures_of_step(slices, step)} for step in steps]
            notes.append(f"{backend}: others used {cores:.2f} cores.")
            if backend == "gloo":
                notes.append(f"Picture: {draw(context, merged).relative_to(context.root)}.")

    def of(backend, key):
        return [one[key] for one in samples if one["backend"] == backend]

    rows = [[backend, *(spread(of(backend, key), digits=1) for key in ("ms", "under_way", "blocked", "hidden")),
             f"{median(of(backend, 'calls')):.0f}"] for backend in BACKENDS]
    notes += ["Under way: at least one call had begun and its bytes had not all arrived. Blocked: what the training "
              "thread spent beginning calls and waiting for them. Hidden: 1 - blocked / under way.",
              f"{STEPS} steps of {SIZE} ranks each, traced; the GPT of the speeds. With {SIZE} ranks on {SIZE} cores "
              "what moves the bytes takes its time from compute: hidden is not free."]
    return Outcome("Communication behind compute",
                   tables=[Table(["backend", "ms a step", "ms under way", "ms blocked", "% hidden", "calls"], rows)],
                   bars=[at_least("communication hidden behind compute on Gloo, %", median(of("gloo", "hidden")),
                                  HIDDEN, "{:.1f}")],
                   notes=notes, samples=samples)
