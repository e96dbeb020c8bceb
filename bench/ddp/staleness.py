"""One of 4 ranks is three times slower: how fast each mode trains, how stale its gradients are, and its final loss."""

import json
import tempfile

from ddp import staleness_picture
from harness.machine import Foreign
from harness.outcome import Outcome, Table, at_least, at_most
from harness.ranks import Ranks, free_port, variables
from harness.spread import median, ratios, spread

RANKS = 4
SEEDS = 3
BATCHES = 1600  # of 32 samples, over all ranks
STEP_MS = 8     # of a fast rank
TIMEOUT = 120
RATE = 0.02
HIGHER_RATES = [0.05, 0.1]
BOUNDS = [0, 1, 4]

SYNCHRONOUS = ("synchronous", 0)
BOUNDED = {bound: ("bounded_staleness", bound) for bound in BOUNDS}
ASYNCHRONOUS = ("asynchronous", 0)
MODES = {
    SYNCHRONOUS: "synchronous",
    **{BOUNDED[bound]: f"bounded staleness {bound}" for bound in BOUNDS},
    ASYNCHRONOUS: "asynchronous",
    ("local_sgd", 0): "local SGD, period 16",
}
COMPARED = [SYNCHRONOUS, BOUNDED[4], ASYNCHRONOUS]


def launch(context, mode, rate, seed):
    program = context.build / "bench" / "ddp" / "bench_staleness"
    with tempfile.NamedTemporaryFile() as counter, Ranks() as ranks:
        counter.write(bytes(8))
        counter.flush()
        port = free_port()
        for rank in range(RANKS):
            ranks.start([program, *mode, rate, seed, BATCHES, STEP_MS, counter.name],
                        variables(rank, RANKS, "127.0.0.1", port))
        return json.loads(ranks.wait(TIMEOUT))


def chosen(samples, mode, rate=RATE):
    return [one for one in samples if (one["mode"], one["max_staleness"]) == mode and one["rate"] == rate]


def column(samples, mode, key, rate=RATE):
    return [one[key] for one in chosen(samples, mode, rate)]


def largest(histogram):
    return len(histogram) - 1


def mean_staleness(histogram):
    return sum(s * count for s, count in enumerate(histogram)) / sum(histogram)


def row(samples, mode):
    histograms = [one for one in column(samples, mode, "staleness") if one]
    stale = [f"{median([mean_staleness(one) for one in histograms]):.2f}",
             str(max(map(largest, histograms)))] if histograms else ["-", "-"]
    return [MODES[mode], spread(column(samples, mode, "steps_per_second"), digits=0),
            spread(column(samples, mode, "samples_per_second"), digits=0),
            spread(column(samples, mode, "updates"), digits=0), *stale,
            spread(column(samples, mode, "loss"), digits=4)]


def loss_ratios(samples, mode, rate=RATE):
    return ratios(column(samples, mode, "loss", rate), column(samples, SYNCHRONOUS, "loss", rate))


def rate_row(samples, rate):
    return [str(rate), spread(column(samples, SYNCHRONOUS, "loss", rate), digits=4),
            *(spread(loss_ratios(samples, mode, rate), digits=3) for mode in COMPARED[1:])]


def bars(samples):
    made = [at_most(f"largest staleness, bound {bound}", max(map(largest, column(samples, mode, "staleness"))), bound,
                    "{:.0f}") for bound, mode in BOUNDED.items()]
    made.append(at_most("bounded staleness 4: final loss / synchronous", median(loss_ratios(samples, BOUNDED[4])), 1.02,
                        "{:.3f}"))
    faster = ratios(column(samples, BOUNDED[4], "samples_per_second"),
                    column(samples, SYNCHRONOUS, "samples_per_second"))
    made.append(at_least("bounded staleness 4: samples a second / synchronous", median(faster), 2.0))
    return made


def measure(context):
    samples = []
    context.settle()
    with Foreign() as others:
        for seed in range(1, (context.rounds or SEEDS) + 1):
            samples += [launch(context, mode, RATE, seed) for mode in MODES]
            samples += [launch(context, mode, rate, seed) for rate in HIGHER_RATES for mode in COMPARED]
    picture = context.root / "docs" / "pictures" / "staleness.svg"
    if context.rounds:  # a trial
        picture = context.output / picture.name
    picture.write_text(staleness_picture.draw(
        histograms=[(name, *(add_up(column(samples, mode, key)) for key in ("staleness", "staleness_of_slow")))
                    for mode, name in MODES.items() if mode in (*BOUNDED.values(), ASYNCHRONOUS)],
        curves=[(name, chosen(samples, mode)[0]["curve"]) for mode, name in MODES.items() if mode != BOUNDED[0]]))
    return Outcome(
        f"Training on {RANKS} ranks, one of them three times slower",
        tables=[Table(["mode", "steps/s of all ranks", "samples/s", "updates", "mean staleness", "largest",
                       "held-out loss"], [row(samples, mode) for mode in MODES]),
                Table(["learning rate", "synchronous: loss", "bounded 4 / synchronous", "asynchronous / synchronous"],
                      [rate_row(samples, rate) for rate in (RATE, *HIGHER_RATES)])],
        bars=bars(samples),
        notes=[f"Processes on shared memory; a network of three layers, SGD with momentum 0.9 and a rate of {RATE}; "
               f"{BATCHES} batches of 32 samples from one common heap, the same in every mode. A step takes {STEP_MS} "
               f"ms, on the slow rank {3 * STEP_MS} ms, most of it slept.",
               "Each figure is over seeds; ratios are of the same seed. The bar's rate was chosen after a trial at "
               "0.05; the second table shows what staleness costs at higher rates.",
               f"Cores busy with other work: {others.cores:.2f}.", f"Picture: {picture.relative_to(context.root)}."],
        samples=samples)


def add_up(histograms):
    length = max(map(len, histograms))
    return [sum(one[s] for one in histograms if s < len(one)) for s in range(length)]
