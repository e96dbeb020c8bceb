"""Rounds in which every contestant has its turn, more of them when others disturb."""

QUIET_CORES = 0.2  # a round during which others used more is not judged while enough others are left
MOST = 2           # times the number that was asked for, at most


def is_calm(samples):
    return max(sample["foreign_cores"] for sample in samples) <= QUIET_CORES


def take(contestants, sample_of, wanted):
    """The samples of each round. `sample_of(contestant)` measures once. Every other round goes backwards, so that
    neighbours in the list precede each other equally often."""
    rounds = []
    while sum(map(is_calm, rounds)) < wanted and len(rounds) < wanted * MOST:
        order = contestants if len(rounds) % 2 == 0 else list(reversed(contestants))
        rounds.append([{"round": len(rounds), **sample_of(one)} for one in order])
    return rounds


def judged(rounds, wanted):
    """The calm ones, if they are enough."""
    calm = [samples for samples in rounds if is_calm(samples)]
    return calm if len(calm) >= wanted else rounds


def calm_text(rounds):
    return f"{sum(map(is_calm, rounds))} of {len(rounds)}"
