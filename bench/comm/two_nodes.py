"""Two nodes of two ranks over a link of 1 Gbit/s: what the order of ranks and the hierarchy save on it."""

import json
import secrets

from harness.machine import Foreign
from harness.outcome import Outcome, Table, at_least, at_most
from harness.ranks import Ranks, variables
from harness.spread import median, ratios, spread
from harness.two_networks import TwoNetworks

CONTIGUOUS = "ring@0,1,2,3"   # crosses the link twice
INTERLEAVED = "ring@0,2,1,3"  # crosses it with every message
HIERARCHICAL = "hierarchical"
VARIANTS = {
    CONTIGUOUS: "ring, nodes together",
    INTERLEAVED: "ring, nodes interleaved",
    HIERARCHICAL: "hierarchical",
    "allreduce": "Gloo's own",
}
RANKS = 4
RANKS_PER_NODE = 2
SIZE = "64M"
LAUNCHES = 3
ROUNDS = 5
PORT = 29400  # the namespaces are ours alone
TIMEOUT = 600
RATE = "1 Gbit/s"
# One millisecond at the rate: above the largest packet before segmentation (64 KB), and far below what a sample sends.
SHAPE = ["tbf", "rate", "1gbit", "burst", "128kb", "latency", "50ms"]


def launch(context, link, rounds):
    command = [context.app, "bench", "all-reduce", "--bytes", SIZE, "--rounds", rounds, "--count-interface",
               link.interface]
    for variant in VARIANTS:
        command += ["--variant", variant]
    secret = {"TESSERA_SECRET": secrets.token_hex(32)}
    with Ranks() as ranks:
        for rank in range(RANKS):
            node = rank // RANKS_PER_NODE
            environment = variables(rank, RANKS, link.address(0), PORT, RANKS_PER_NODE)
            ranks.start(link.inside(node) + command, {**environment, **secret})
        return [json.loads(line) for line in ranks.wait(TIMEOUT).splitlines()]


def column(samples, variant, key):
    return [one[key] for one in samples if one["variant"] == variant]


def row(samples, variant):
    seconds, link_bytes = column(samples, variant, "seconds"), column(samples, variant, "link_bytes")
    # Bytes of both directions are counted, and each direction has the whole rate.
    rate = [count * 8 / 2 / taken / 1e9 for count, taken in zip(link_bytes, seconds)]
    return [VARIANTS[variant], spread(seconds, 1e3, digits=0), spread(link_bytes, 1 / (1 << 20), digits=1),
            spread(rate)]


def measure(context):
    samples, foreign = [], []
    with TwoNetworks(SHAPE) as link:
        for number in range(LAUNCHES):
            context.settle()
            with Foreign() as others:
                samples += [{"launch": number, **one} for one in launch(context, link, context.rounds or ROUNDS)]
            foreign.append(others.cores)
    # The app changes the order of the variants from round to round; the values of a pair are of the same round.
    samples.sort(key=lambda one: (one["launch"], one["round"]))
    bars = []
    for other, most, least in ((CONTIGUOUS, 0.70, 1.25), (INTERLEAVED, 0.36, 2.3)):
        sent = ratios(column(samples, HIERARCHICAL, "link_bytes"), column(samples, other, "link_bytes"))
        faster = ratios(column(samples, other, "seconds"), column(samples, HIERARCHICAL, "seconds"))
        bars.append(at_most(f"hierarchical's bytes on the link / {VARIANTS[other]}", median(sent), most, "{:.3f}"))
        bars.append(at_least(f"hierarchical's speed / {VARIANTS[other]}", median(faster), least))
    return Outcome(
        f"All-reduce of {SIZE}B, two nodes of {RANKS_PER_NODE} ranks, {RATE}",
        tables=[Table(["algorithm", "ms", "MiB on the link", "Gbit/s each way"],
                      [row(samples, variant) for variant in VARIANTS])],
        bars=bars,
        notes=["The link's bytes are the kernel's count of one end, both ways, headers included. Packets are counted "
               "before segmentation, so of each run of segments only one header.",
               "Cores busy with other work, this run's kernel threads included: "
               + ", ".join(f"{cores:.2f}" for cores in foreign) + "."],
        samples=samples)
