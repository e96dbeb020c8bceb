"""The memory of training a model whose parameters dominate: ours and PyTorch's, on two and on four ranks."""

import dataclasses

from fsdp.training import commands
from harness.answering import Answering
from harness.outcome import Outcome, Table, at_most
from harness.resident import Resident, high_water_bytes, proportional_bytes
from harness.spread import median, ratios, spread

SHAPE = (12, 1024, 16, 8192, 64, 1)  # layers, width, heads, vocabulary, sequence, batch: 168 million parameters
SIZES = [2, 4]
ROUNDS = 1
STEPS = 3
AGAINST_FSDP2 = 0.80
AGAINST_FSDP1 = 1.00
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    program: str
    kind: str


OURS_GLOO = Contestant("ours, Gloo", "gloo", "fsdp")
OURS_SHM = Contestant("ours, shm", "shm", "fsdp")
FSDP2 = Contestant("PyTorch's FSDP2, Gloo", "python", "fsdp2")
FSDP1 = Contestant("PyTorch's FSDP1, Gloo", "python", "fsdp1")
CONTESTANTS = [OURS_GLOO, OURS_SHM, FSDP2, FSDP1]


def sample_of(context, contestant, size):
    """Bytes of all ranks together: at the start without a model, the peak until the first step is done, the peak in the
    steps after it, and the sum of each rank's own peak."""
    with Answering(commands(context, SHAPE)[contestant.program], size) as ranks:
        processes = [process.pid for process in ranks.ranks.processes]
        ranks.ask("start", 0)  # all ranks run, and have made no model yet
        start = proportional_bytes(processes)
        with Resident(processes) as making:
            ranks.ask(contestant.kind, 1)
        with Resident(processes) as training:
            ranks.ask(contestant.kind, STEPS)
        high_water = high_water_bytes(processes)
        ranks.finish()
    return {"contestant": contestant.name, "ranks": size, "start": start, "making": making.peak,
            "training": training.peak, "peak": max(making.peak, training.peak), "high_water": high_water}


def measure(context):
    samples = [sample_of(context, one, size) for _ in range(context.rounds or ROUNDS) for size in SIZES
               for one in CONTESTANTS]

    def of(one, size, key):
        return [sample[key] for sample in samples if sample["contestant"] == one.name and sample["ranks"] == size]

    keys = ["start", "making", "training", "peak", "high_water"]
    rows = [[str(size), one.name, *(spread(of(one, size, key), 1 / MIB, digits=0) for key in keys),
             f"{median(ratios(of(one, size, 'peak'), of(FSDP2, size, 'peak'))):.2f}"]
            for size in SIZES for one in CONTESTANTS]
    return Outcome(
        "Resident memory of all ranks together, MiB",
        tables=[Table(["ranks", "contestant", "start", "until a step is done", "steps", "peak", "sum of high waters",
                       "peak / FSDP2's"], rows)],
        bars=[at_most(f"peak memory of {one.name} / {peer.name}, {size} ranks",
                      median(ratios(of(one, size, "peak"), of(peer, size, "peak"))), limit)
              for size in SIZES for one in (OURS_GLOO, OURS_SHM)
              for peer, limit in ((FSDP2, AGAINST_FSDP2), (FSDP1, AGAINST_FSDP1))],
        notes=["A GPT of 168 million parameters: 12 layers, width 1024, 16 heads, vocabulary 8192, batches of 1 x 64 "
               "tokens, fp32; fused AdamW, a unit for each layer, ours cut at `max_unit_bytes`. Every rank makes the whole "
               "model and then shards it.",
               "Peak: the largest of samples, 50 ms apart, of the sum of the ranks' Pss (/proc/PID/smaps_rollup): a "
               "page that ranks share counts once. Sum of high waters: VmHWM of each rank, which misses no moment but "
               "counts shared pages for each. All of it is the whole process, programs and libraries included."],
        samples=samples)
