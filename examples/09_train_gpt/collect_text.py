#!/usr/bin/env python3
"""Collects English text that every Debian machine carries: licences and the notices of its packages.

  collect_text.py FOLDER [BYTES]     writes FOLDER/train.txt and FOLDER/validation.txt, together about BYTES (2 million)

A paragraph that several packages have is taken once, so what is validated was not trained on.
"""

import sys
from pathlib import Path

VALIDATION = 0.05    # the share of the bytes that is for validation
LARGEST = 100_000    # bytes of one document: no single one should be most of the text


def documents():
    for folder, pattern in (("/usr/share/common-licenses", "*"), ("/usr/share/doc", "*/README*"),
                            ("/usr/share/doc", "*/copyright")):
        for path in sorted(Path(folder).glob(pattern)):
            if path.is_file() and not path.is_symlink() and path.suffix not in (".gz", ".html"):
                yield path.read_bytes()


def readable(paragraph):
    """Sentences, rather than tables, addresses or another script than ours."""
    letters = sum(byte == 32 or 97 <= byte <= 122 for byte in paragraph)
    return len(paragraph) > 80 and letters > 0.8 * len(paragraph) and max(paragraph) < 128


def fresh_paragraphs(document, seen):
    text = b""
    for paragraph in document.replace(b"\r\n", b"\n").split(b"\n\n"):
        key = b" ".join(paragraph.split())
        if key not in seen and readable(paragraph) and len(text) < LARGEST:
            seen.add(key)
            text += paragraph.strip(b"\n") + b"\n\n"
    return text


def main(folder, limit=2_000_000):
    train, validation, seen = b"", b"", set()
    for document in documents():
        text = fresh_paragraphs(document, seen)
        if len(validation) < VALIDATION * len(train):
            validation += text
        else:
            train += text
        if len(train) + len(validation) >= limit:
            break
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, text in (("train.txt", train), ("validation.txt", validation)):
        (Path(folder) / name).write_bytes(text)
        print(f"{folder}/{name}: {len(text)} bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:]))
