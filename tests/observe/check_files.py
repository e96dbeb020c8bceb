"""check_files.py SAMPLE_RUN: runs it, and compares what decoders of their own find in its files with what it put in."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import decoders


def check_board(folder):
    (path,) = folder.glob("events.out.tfevents.*")
    version, config, *steps = decoders.events(path)
    assert version["version"] == "brain.Event:2"
    assert config["texts"]["config"] == "    # a run\n    lr = 0.5\n    ", config
    assert [event["step"] for event in steps] == list(range(1, 21))
    for event in steps:
        scalars = event["scalars"]
        assert abs(scalars["train/loss"] - 4 / event["step"]) < 1e-6
        assert abs(scalars["validation/loss"] - 5 / event["step"]) < 1e-6
        assert scalars["train/learning_rate"] == 0.5
        assert scalars["speed/step_seconds"] == 0.125
        assert scalars["speed/tokens_per_second"] == 8192
        assert scalars["memory/resident_megabytes"] > 0


def check_trace(path):
    slices = decoders.trace_slices(path)
    by_rank = {rank: [one for one in slices if one["rank"] == rank] for rank in (0, 1)}
    starts = {}
    for rank, own in by_rank.items():
        forward = [one for one in own if one["name"] == "forward"]
        calls = [one for one in own if one["name"] == "all_reduce"]
        steps = [one for one in own if one["track"] == "steps"]
        assert len(forward) == len(calls) == len(steps) == 20
        assert all(one["track"] == "compute" and one["parent"].startswith(f"rank {rank} of 2") for one in forward)
        assert all(one["track"] == "communication" for one in calls)
        assert [one["annotations"]["number"] for one in calls] == list(range(1, 21))
        assert all(one["end"] - one["start"] == 500 for one in calls)
        assert all(one["annotations"]["returned_after_ns"] == 600 for one in calls)
        # The call begins while the forward is under way.
        assert all(f["start"] < c["start"] < f["end"] for f, c in zip(forward, calls))
        starts[rank] = forward[0]["start"]
    # Rank 1's clock was 1000 s behind; the two ran within less than that.
    assert 0 < starts[1] - starts[0] < 500_000_000_000, starts


def check_log(path):
    run, *steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert run["run"]["total_steps"] == 20
    assert [one["step"] for one in steps] == list(range(1, 21))
    assert all(one["loss"] == 4 / one["step"] for one in steps)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.argv[1], folder], check=True, timeout=50)
        check_board(folder / "board")
        check_trace(folder / "trace.pftrace")
        check_log(folder / "log.jsonl")
    print("event file, trace and log hold what was recorded")


if __name__ == "__main__":
    main()
