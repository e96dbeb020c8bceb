"""check_marked_lines.py EXAMPLE N: main.cpp marks lines (1) to (N), each once, and the README's diff adds just these."""

import re
import sys
from pathlib import Path


def main() -> None:
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    source = (folder / "main.cpp").read_text().splitlines()
    marked = [line.strip() for line in source if re.search(r"// \(\d+\)$", line)]
    marks = [int(re.search(r"// \((\d+)\)$", line).group(1)) for line in marked]
    diff = re.search(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    if diff is None:
        sys.exit("the README shows no diff")
    shown = diff.group(1).splitlines()
    added = [line[1:].strip() for line in shown if line.startswith("+")]
    kept = [line[1:].strip() for line in shown if line.startswith(" ")]
    unknown = [line for line in kept if line and line not in {each.strip() for each in source}]
    if marks != list(range(1, number + 1)) or added != marked or any(line.startswith("-") for line in shown) or unknown:
        sys.exit(f"marked in main.cpp: {marked}\nadded in the README: {added}\nnot in main.cpp: {unknown}")
    print("as promised")


if __name__ == "__main__":
    main()
