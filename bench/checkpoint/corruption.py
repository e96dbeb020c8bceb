"""Damaged files, ours and PyTorch's: which of them a load detects, and which it loads as if they were intact."""

import contextlib
import itertools
import random
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from harness.answering import Answering
from harness.outcome import Outcome, Table, at_least
from harness.ranks import Ranks, free_port, variables

NUM_FLIPS = 1000
NUM_CUTS = 100
SEED = 2026
SIZE = 2  # ranks that save
STEP, OTHER_STEP = 20, 40
TENSOR = re.compile(r"\bw\d+\b")

NAMED, UNNAMED, SILENT, HARMLESS = "found and named", "fails without a name", "loads other values", "no effect"
VERDICTS = [NAMED, UNNAMED, SILENT, HARMLESS]


class Format:
    """Checkpoints of one kind: two steps on the disk, and a process that loads the first."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, [str(part) for part in command], folder
        self.stack = contextlib.ExitStack()
        self.loader = None

    def save(self, step):
        folder = self.folder / str(step)
        folder.mkdir()
        port = free_port()
        with Ranks() as ranks:
            for rank in range(SIZE):
                environment = {**variables(rank, SIZE, "127.0.0.1", port), "GLOO_SOCKET_IFNAME": "lo"}
                ranks.start([*self.command, "save", folder, step], environment)
            ranks.wait(120)
        # Ours makes one folder for each step; the innermost folder is the checkpoint.
        return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    def __enter__(self):
        self.files, self.others = self.save(STEP), self.save(OTHER_STEP)
        self.others = dict(zip(self.files, self.others.values()))  # the same names, except for the step's number
        return self

    def __exit__(self, *failure):
        self.stop()

    def stop(self):
        if self.loader:
            self.loader.__exit__(None, None, None)
        self.loader = None

    def load(self):
        """The answer to one load. If a damaged file ends the loader, the next load starts a new one."""
        if not self.loader:
            self.loader = Answering([*self.command, "load", self.folder / str(STEP), str(STEP)]).__enter__()
        try:
            return self.loader.ask("load", 1)[0][0]
        except RuntimeError:
            self.stop()
            return {"loaded": False, "same": False, "error": "the process ended"}

    def try_with(self, changed):
        """Loads with these files in place of the saved ones; None: the file is missing. Returns verdict and answer."""
        for name, content in changed.items():
            self.path(name).unlink() if content is None else self.path(name).write_bytes(content)
        answer = self.load()
        for name in changed:
            self.path(name).write_bytes(self.files[name])
        if answer["loaded"]:
            return (HARMLESS if answer["same"] else SILENT), answer
        # The whole path: ".metadata" alone occurs in many tracebacks.
        is_named = any(str(self.path(name)) in answer["error"] for name in changed)
        return (NAMED if is_named else UNNAMED), answer

    def path(self, name):
        return self.folder / str(STEP) / name


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def flips(files, seed):
    """Flips bits anywhere in the files. The seed decides where, as a share of all bytes."""
    chance = random.Random(seed)
    for _ in range(NUM_FLIPS):
        bit = int(chance.random() * 8 * sum(map(len, files.values())))
        for name, content in files.items():
            if bit < 8 * len(content):
                yield {name: flipped(content, bit)}
                break
            bit -= 8 * len(content)


def cuts(files, seed):
    chance = random.Random(seed + 1)
    for _ in range(NUM_CUTS):
        name = list(files)[int(chance.random() * len(files))]
        yield {name: files[name][:int(chance.random() * len(files[name]))]}


def damages(kind):
    """By the name of the damage: a function without arguments that yields every change of the files."""
    files, others = kind.files, kind.others
    return {
        "a flipped bit": lambda: flips(files, SEED),
        "a file cut short": lambda: cuts(files, SEED),
        "two files swapped": lambda: ({one: files[other], other: files[one]}
                                      for one, other in itertools.combinations(files, 2)),
        "a file of another step": lambda: ({name: others[name]} for name in files),
        "a file missing": lambda: ({name: None} for name in files),
    }


def judge(kind):
    """How often each verdict occurred, by damage; and every single verdict."""
    if not kind.load()["same"]:
        raise RuntimeError(f"{kind.name}: what was saved does not load")
    counts, samples = {}, []
    for damage, changes in damages(kind).items():
        counts[damage] = Counter()
        for changed in changes():
            verdict, answer = kind.try_with(changed)
            counts[damage][verdict] += 1
            samples.append({"format": kind.name, "damage": damage, "files": [str(name) for name in changed],
                            "verdict": verdict, "error": answer["error"][:400]})
    return counts, samples


def formats(context, folder):
    peer = [context.python, context.root / "bench" / "peers" / "corruption_rank.py"]
    commands = {"ours": [context.build / "bench" / "checkpoint" / "bench_corruption"],
                "PyTorch's distributed checkpoint": [*peer, "dcp"], "torch.save": [*peer, "torch"]}
    for number, (name, command) in enumerate(commands.items()):
        (folder / str(number)).mkdir()
        yield Format(name, command, folder / str(number))


def tensors_named(samples):
    """The number of flips inside tensors of ours, and how many of their messages name the tensor."""
    inside = [sample for sample in samples if sample["format"] == "ours" and sample["damage"] == "a flipped bit"
              and "header" not in sample["error"] and not sample["files"][0].endswith("manifest.json")]
    return len(inside), sum(1 for sample in inside if TENSOR.search(sample["error"]))


def measure(context):
    rows, samples, found = [], [], {}
    folder = Path(tempfile.mkdtemp(dir=context.output, prefix="corruption-"))
    try:
        for kind in formats(context, folder):
            with kind:
                counts, judged = judge(kind)
            samples += judged
            for damage, verdicts in counts.items():
                rows.append([damage, kind.name, str(verdicts.total()), *(str(verdicts[one]) for one in VERDICTS)])
                if kind.name == "ours":
                    found[damage] = verdicts
    finally:
        shutil.rmtree(folder)
    rows.sort(key=lambda row: list(found).index(row[0]))
    inside, named = tensors_named(samples)
    others = [verdicts for damage, verdicts in found.items() if damage != "a flipped bit"]
    return Outcome(
        "Damaged files", tables=[Table(["damage", "", "tried", *VERDICTS], rows)],
        bars=[at_least("flipped bits that ours finds, naming the file", found["a flipped bit"][NAMED], NUM_FLIPS, "{}"),
              at_least("of those inside tensors, messages that name the tensor", named, inside, "{}"),
              at_least("other damages that ours finds, naming the file", sum(one[NAMED] for one in others),
                       sum(one.total() for one in others), "{}")],
        notes=["64 tensors of 8 KiB, saved by two ranks, loaded by one process. Bits are flipped at the same seeded shares of "
               "each format's bytes, metadata included. A load is what a training does that resumes: ours is SavedStep and "
               "read_slices(), PyTorch's dcp.load() and torch.load() of each rank's file.",
               "Found and named: the load fails, and its message has the path of a file that was changed. No effect: the "
               "bytes are not used, or only by other readers."],
        samples=samples)
