"""check_program_diff.py EXAMPLE MOST: how main.cpp differs from alone.cpp, apart from the comment at its top.

At most MOST lines are new or changed, and the README's diff shows them all, and nothing else.
"""

import difflib
import re
import sys
from pathlib import Path


def changed(lines: list[str]) -> list[str]:
    return [line[0] + line[1:].strip() for line in lines if line[:1] in ("+", "-")]


def main() -> None:
    folder, most = Path(sys.argv[1]), int(sys.argv[2])
    alone, sharded = ((folder / name).read_text().splitlines()[1:] for name in ("alone.cpp", "main.cpp"))
    found = changed(list(difflib.unified_diff(alone, sharded, lineterm=""))[2:])
    diff = re.search(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if diff is None:
        sys.exit("the README shows no diff")
    shown = diff.group(1).splitlines()
    unknown = [line for line in shown if line.startswith(" ") and line[1:].strip() not in {each.strip() for each in alone}]
    added = [line for line in found if line.startswith("+")]
    if found != changed(shown) or len(added) > most or unknown:
        sys.exit(f"between the programs: {found}\nin the README: {changed(shown)}\nnot in alone.cpp: {unknown}")
    print("as promised")


if __name__ == "__main__":
    main()
