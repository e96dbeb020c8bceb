"""Steps of stages that take a set time and no core, on 2, 4 and 8 ranks, against the simulated schedule."""

from harness.answering import Answering
from harness.outcome import Bar, Outcome, Table, at_most

POINTS = 3.0        # of the simulated makespan, in hundredths
# Milliseconds of a forward, of the gradient of an input, of those of the weights. With the zero-bubble schedules all
# ranks work at the same moments: the more of them share a core, the longer they wait for it between two operations. And
# a core that has slept is cold (see tests/pipeline/timed.h).
UNIT = 40
SIZES = (2, 4, 8)
MOST_STEPS = 6      # others use the cores too: the fastest step counts, and there are no more when one is near
MOST_SECONDS = 20   # of a step: those that work one rank at a time take longer with many ranks
KINDS = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "round_robin", "sequential"]
ONE_AT_A_TIME = ("round_robin", "sequential")


def difference(answer):
    """In hundredths of the simulated makespan."""
    return 100 * (min(answer["seconds"]) / answer["simulated"] - 1)


def taken(ranks, variant):
    """All steps of a schedule as one answer of a rank; all of them know the same."""
    merged = None
    while merged is None or (abs(difference(merged)) > POINTS and len(merged["seconds"]) < MOST_STEPS):
        answer = ranks.ask(variant, 2)[0][0]
        if merged:
            answer["seconds"] += merged["seconds"]
            answer["live"] = [max(pair) for pair in zip(answer["live"], merged["live"])]
        merged = answer
    return merged


def measure(context):
    context.settle()
    program = context.build / "bench" / "pipeline" / "bench_pipeline_timed"
    answers = {}
    for size in SIZES:
        with Answering([program, "shm", UNIT], size) as ranks:
            for kind in KINDS:
                for micro_batches in (8, 16, 32):
                    slow = kind in ONE_AT_A_TIME and 3 * UNIT / 1000 * size * micro_batches > MOST_SECONDS
                    if not slow:
                        answers[kind, size, micro_batches] = taken(ranks, f"{kind}/{micro_batches}")
            ranks.finish()
    rows = [[kind, str(size), str(micro_batches), f"{one['simulated']:.3f}", f"{min(one['seconds']):.3f}",
             f"{difference(one):+.2f} %", ", ".join(map(str, one["live"])), ", ".join(map(str, one["simulated_live"]))]
            for (kind, size, micro_batches), one in answers.items()]
    farthest = max(answers, key=lambda key: abs(difference(answers[key])))
    above = [key for key, one in answers.items()
             if any(live > allowed for live, allowed in zip(one["live"], one["simulated_live"]))]
    bars = [at_most(f"a step beside the simulated makespan, the farthest ({'/'.join(map(str, farthest))}), in %",
                    abs(difference(answers[farthest])), POINTS),
            Bar("schedules with more live activations than the checker says", str(len(above)), "0", not above)]
    notes = [f"Each stage is a product whose forward and both gradients sleep {UNIT} ms each, on ranks that are "
             "processes of one host and talk through shared memory. A step is the whole of `Pipeline::step()` on the "
             f"slowest rank. The fastest of 2 to {MOST_STEPS} steps.",
             "Live: for each rank, the most factors at once that still wait in memory for the gradient of their weight."]
    columns = ["schedule", "ranks", "micro-batches", "simulated, s", "measured, s", "difference", "live", "checker"]
    samples = [{"kind": kind, "ranks": size, "micro_batches": micro_batches, **one}
               for (kind, size, micro_batches), one in answers.items()]
    return Outcome("Pipelines of stages that take a set time", tables=[Table(columns, rows)], bars=bars, notes=notes,
                   samples=samples)
