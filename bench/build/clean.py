"""A clean build of everything that CI builds: each file alone with g++ (the former way), and the preset `default`.

The former way takes two core-hours, so by default it is estimated from one file in eight, drawn at random; --rounds N
draws one in N, and --rounds 1 builds everything."""

import math
import random
import statistics

from build.building import Building, Cost, folders
from harness.outcome import Outcome, Table, at_most

ONE_IN = 8
TOGETHER = 6
SEED = 15
BAR, AIM = 0.25, 0.2


def as_it_is(context, folder):
    """The costs of the objects and of the rest (links, lists of tests), which the former way has too."""
    building = Building(context.root, folder / "new", "default")
    objects, precompiled = building.objects()
    compiled = building.build(*precompiled, *objects)
    return compiled, building.build(), len(objects)


def as_it_was(context, folder, one_in):
    """The cost of compiling, its standard error, the number of objects drawn, and the number of all objects."""
    building = Building(context.root, folder / "old", "separate", "-DCMAKE_CXX_COMPILER=c++")
    objects, precompiled = building.objects()
    headers = building.build(*precompiled).processor
    if one_in == 1:
        return headers + building.build(*objects).processor, 0.0, len(objects), len(objects)
    drawn = random.Random(SEED).sample(objects, math.ceil(len(objects) / one_in / TOGETHER) * TOGETHER)
    # Several at once, so that both cores are busy, as in a whole build.
    handfuls = []
    for i in range(0, len(drawn), TOGETHER):
        cost = building.build(*drawn[i:i + TOGETHER])
        # An object may need a file that one of our programs writes; that program is then built first.
        if cost.num_objects:
            handfuls.append(cost.processor / cost.num_objects)
    remaining = 1 - len(drawn) / len(objects)  # the cost of the drawn objects is known, not estimated
    error = len(objects) * statistics.stdev(handfuls) / math.sqrt(len(handfuls)) * math.sqrt(remaining)
    return headers + len(objects) * statistics.mean(handfuls), error, len(drawn), len(objects)


def measure(context):
    one_in = context.rounds or ONE_IN
    context.settle()
    with folders(context) as folder:
        compiled, rest, num_new = as_it_is(context, folder)
        old, error, num_drawn, num_old = as_it_was(context, folder, one_in)
    new = compiled + rest
    before = Cost(old + rest.processor)
    ratio = new.processor / before.processor
    rows = [
        ["each file alone, g++", f"{num_old}", f"{old:.0f} ± {2 * error:.0f}", f"{rest.processor:.0f}",
         f"{before.processor:.0f}", "-"],
        ["default: unity, clang", f"{num_new}", f"{compiled.processor:.0f}", f"{rest.processor:.0f}",
         f"{new.processor:.0f}", f"{new.wall / 60:.1f}"],
    ]
    notes = [f"Of the former way {num_drawn} of {num_old} objects were built; ± is twice the standard error."
             if num_drawn < num_old else "Both ways were built whole.",
             f"The aim is {AIM:.2f}. Links and lists of tests are the same in both ways, and measured once."]
    samples = [{"way": "separate", "compile_seconds": old, "error": error, "drawn": num_drawn, "objects": num_old},
               {"way": "default", "compile_seconds": compiled.processor, "rest_seconds": rest.processor,
                "wall_seconds": new.wall, "objects": num_new}]
    return Outcome("A clean build of everything, without ccache",
                   [Table(["way", "objects", "compiling (CPU s)", "linking (CPU s)", "all (CPU s)", "minutes"], rows)],
                   [at_most("processor seconds, new / former", ratio, BAR)], notes, samples)
