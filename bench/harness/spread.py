"""Medians with their spread, and comparisons that work on a noisy machine."""

import statistics


def median(values):
    return statistics.median(values)


def spread(values, scale=1.0, unit="", digits=2):
    """The median, and in brackets the least and the greatest."""
    low, middle, high = (scale * value for value in (min(values), median(values), max(values)))
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]{' ' + unit if unit else ''}"


def ratios(numerators, denominators):
    """Element by element: both values of a pair are of the same round, so a disturbance affected both."""
    if len(numerators) != len(denominators) or not numerators:
        raise RuntimeError(f"rounds do not match: {len(numerators)} against {len(denominators)}")
    return [a / b for a, b in zip(numerators, denominators)]


def bytes_text(count):
    for unit, size in (("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count} B"
