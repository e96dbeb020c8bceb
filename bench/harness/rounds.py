"""Rounds in which every contestant is measured once; there are more rounds when other processes disturb them."""

QUIET_CORES = 0.2  # a round during which other processes used more is not judged if enough quiet rounds are left
MOST = 2           # at most so many times the requested number of rounds


def is_calm(samples):
    return max(sample["foreign_cores"] for sample in samples) <= QUIET_CORES


def take(contestants, sample_of, wanted):
    """Returns the samples of each round. `sample_of(contestant)` measures once. Every other round goes backwards, so
    that each of two neighbours in the list is measured first equally often."""
    rounds = []
    while sum(map(is_calm, rounds)) < wanted and len(rounds) < wanted * MOST:
        order = contestants if len(rounds) % 2 == 0 else list(reversed(contestants))
        rounds.append([{"round": len(rounds), **sample_of(one)} for one in order])
    return rounds


def judged(rounds, wanted):
    """The quiet rounds, if there are enough of them."""
    calm = [samples for samples in rounds if is_calm(samples)]
    return calm if len(calm) >= wanted else rounds


def calm_text(rounds):
    return f"{sum(map(is_calm, rounds))} of {len(rounds)}"
