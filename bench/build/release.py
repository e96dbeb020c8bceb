"""What a user builds: the preset `release`, with the machine's own compiler."""

import re

from build.building import Building, folders
from harness.outcome import Bar, Outcome, Table


def stated_minutes(root):
    """The minutes that README.md states; the bar checks that they are enough."""
    found = re.search(r"takes about (\d+) minutes on two\s+cores", (root / "README.md").read_text())
    return int(found.group(1)) if found else None


def measure(context):
    context.settle()
    with folders(context) as folder:
        cost = Building(context.root, folder / "release", "release").build()
    stated = stated_minutes(context.root)
    minutes = cost.wall / 60
    bar = Bar("minutes for the preset release, as README says", f"{minutes:.1f}",
              f"at most {stated}" if stated else "a sentence in README.md",
              stated is not None and minutes <= stated + 0.5)
    return Outcome("A clean build of what is installed, without ccache",
                   [Table(["preset", "CPU s", "minutes"], [["release", f"{cost.processor:.0f}", f"{minutes:.1f}"]])],
                   [bar], [], [{"processor_seconds": cost.processor, "wall_seconds": cost.wall}])
