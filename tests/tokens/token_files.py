"""token_files.py TESSERA: readers and writers of the token files' formats, written from their description alone
(docs/formats/token_files.md), against `tessera data`. Fails with the first difference."""

import array
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}
LLMC = {20240520: (1, "H"), 20240801: (7, "I")}


def numbers(letter, data):
    return list(struct.unpack(f"<{len(data) // struct.calcsize('<' + letter)}{letter}", data))


def read_megatron(prefix):
    """Documents, each a list of sequences."""
    index, data = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, num_sequences, num_entries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    at = 34
    lengths = numbers("i", index[at:at + 4 * num_sequences])
    at += 4 * num_sequences
    pointers = numbers("q", index[at:at + 8 * num_sequences])
    at += 8 * num_sequences
    entries = numbers("q", index[at:])
    assert len(entries) == num_entries and entries[0] == 0 and entries[-1] == num_sequences
    size = struct.calcsize(CODES[code])
    sequences = [numbers(CODES[code], data[pointer:pointer + length * size])
                 for length, pointer in zip(lengths, pointers, strict=True)]
    return [sequences[begin:end] for begin, end in zip(entries, entries[1:], strict=False)]


def write_megatron(prefix, code, documents):
    sequences = [sequence for document in documents for sequence in document]
    size = struct.calcsize(CODES[code])
    lengths = [len(sequence) for sequence in sequences]
    pointers = [size * sum(lengths[:i]) for i in range(len(lengths))]
    entries = [0]
    for document in documents:
        entries.append(entries[-1] + len(document))
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(entries)))
        file.write(struct.pack(f"<{len(lengths)}i{len(pointers)}q{len(entries)}q", *lengths, *pointers, *entries))
    with open(f"{prefix}.bin", "wb") as file:
        for sequence in sequences:
            file.write(struct.pack(f"<{len(sequence)}{CODES[code]}", *sequence))


def read_llmc(path):
    data = Path(path).read_bytes()
    header = numbers("i", data[:1024])
    version, letter = LLMC[header[0]]
    assert header[1] == version and not any(header[3:])
    tokens = numbers(letter, data[1024:])
    assert len(tokens) == header[2]
    return tokens


def write_llmc(path, magic, tokens):
    version, letter = LLMC[magic]
    header = array.array("i", [magic, version, len(tokens)] + [0] * 253)
    Path(path).write_bytes(header.tobytes() + struct.pack(f"<{len(tokens)}{letter}", *tokens))


def same(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {str(expected)[:300]}, found {str(found)[:300]}")


class Tessera:
    def __init__(self, program):
        self.program = program

    def run(self, *arguments):
        done = subprocess.run([self.program, "data", *map(str, arguments)], capture_output=True, text=True, timeout=60)
        if done.returncode:
            sys.exit(f"{arguments}: {done.stderr}")
        return done.stdout

    def facts(self, path):
        return json.loads(self.run("show", "--json", path))

    def tokens(self, path, *which):
        return [int(word) for word in self.run("show", path, *which).split()]


def check_ours(tessera, folder):
    """What `tessera data pack` writes, read here."""
    lines = ["".join(chr(random.randrange(32, 0x3000)) for _ in range(random.randrange(1, 60))) for _ in range(50)]
    lines = [line for line in lines if line.strip()]
    text = folder / "text"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    expected = [list(line.encode()) for line in text.read_text(encoding="utf-8").split("\n")[:-1]]
    for name in ("uint8", "uint16", "int32", "int64"):
        tessera.run("pack", folder / name, text, "--documents", "line", "--type", name)
        same(name, read_megatron(folder / name), [[document] for document in expected])
    joined = [token for document in expected for token in [*document, 256]]
    for name in ("llmc-gpt2", "llmc-llama3"):
        tessera.run("pack", folder / name, text, "--documents", "line", "--format", name, "--end-of-document", "true")
        same(name, read_llmc(folder / name), joined)


def check_theirs(tessera, folder):
    """What is written here, read by `tessera data show`."""
    limits = {1: 255, 2: 127, 3: 32767, 4: 2**31 - 1, 5: 2**62, 8: 65535}
    for code, limit in limits.items():
        documents = [[[random.randint(0, limit) for _ in range(random.randrange(20))]
                      for _ in range(random.randrange(1, 4))] for _ in range(12)]
        prefix = folder / f"code{code}"
        write_megatron(prefix, code, documents)
        same(f"{prefix} here", read_megatron(prefix), documents)
        facts = tessera.facts(prefix)
        same("documents", facts["documents"], len(documents))
        same("sequences", facts["sequences"], sum(map(len, documents)))
        for number, document in enumerate(documents):
            same(f"code {code}, document {number}", tessera.tokens(prefix, "--document", number), sum(document, []))
    for magic, (_, letter) in LLMC.items():
        tokens = [random.randint(0, 2**(8 * struct.calcsize(letter)) - 1) for _ in range(500)]
        path = folder / f"{magic}.bin"
        write_llmc(path, magic, tokens)
        same(str(magic), tessera.tokens(path, "--count", 1000), tokens)


def main():
    random.seed(6)
    tessera = Tessera(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        check_ours(tessera, Path(folder))
        check_theirs(tessera, Path(folder))
    print("both ways the same")


if __name__ == "__main__":
    main()
