"""Finds places where one small change makes C++ code wrong: see sites_in. It expects the format of this project, with
one statement on each line."""

import re
from dataclasses import dataclass

HEADER = """#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace mutants {

inline int active() {
  static const int number = [] {
    const char* text = std::getenv("TESSERA_MUTANT");
    return text ? std::atoi(text) : 0;
  }();
  return number;
}

/// Once for each mutant and process: leaves a file with its number, if a folder is named.
inline bool reached(int number) {
  static const char* const folder = std::getenv("TESSERA_MUTANTS_REACHED");
  if (!folder) return true;
  const int file = open((std::string(folder) + "/" + std::to_string(number)).c_str(), O_CREAT | O_WRONLY, 0600);
  if (file >= 0) close(file);
  return true;
}

template <int kNumber>
bool on() {
  [[maybe_unused]] static const bool was_reached = reached(kNumber);
  return active() == kNumber;
}

/// 1 instead of a number.
template <int kNumber, class T>
T or_one(const T& value) {
  return on<kNumber>() ? T(1) : value;
}

}  // namespace mutants
"""

# A statement that is neither a declaration nor leaves the function; NO_STATEMENT excludes the rest.
STATEMENT = re.compile(r"^(?P<indent> {2,})(?P<code>(\+\+|--)?\*?[A-Za-z_][\w:]*((\.|->|\[|\()\S.*|\s(=|\+=|-=|\*=|\|=)\s.*|"
                       r"(\+\+|--))?;)(\s*//.*)?$")
NO_STATEMENT = re.compile(r"^\s*(return|const|auto|using|static|throw|break|continue|case|default|goto|delete|co_\w+|"
                          r"std::unreachable|[A-Z][A-Z_]+)\b|^\s*\w+\(\);$|^\s*[\w:]+ \w+;$")
FLAG = re.compile(r"^[\w.>-]+_? = (true|false|nullptr|std::nullopt|\{\}|Phase::\w+|\w+State::\w+);$")
WAIT = re.compile(r"\b(wait\w*|join|synchroni[sz]e\w*|fence\w*|barrier)\(")
DIVISION = re.compile(r" / (?P<divisor>(static_cast<\w+>\()?[A-Za-z_][\w.]*(->\w+)*(\(\))?\)?)(?=[;,) ])")
SLICE = re.compile(r"\.(narrow|slice)\((?P<dim>[^,()]+), (?P<start>[^,()]+(\([^()]*\))?), ")
BOUND = re.compile(r"^(\s+for \(.*; )(?P<left>\w+) < (?P<right>[^;]+)(;.*)$")
COLLECTIVE = re.compile(r"(?<![\w:])(enter|sum_over_ranks|gather_whole|take_part_of)\(")
MOVED_CUT = re.compile(r"(?<![\w:])moved_cut\(")
ORDER = re.compile(r"^(?P<head>(?:\s+(?:(?:if|for) \(.*\) |\w.* mutable \{ )?|\w.* \{ ))"
                   r"(?P<object>[A-Za-z_][\w:]*(?:[.(\[]|->|\w).*?|\w+)"
                   r"(?P<call>(?:\.|->)(?:(?:wait|note|note_use|join|synchronize)\(\)|wait\(kNoTimeout\)|record_stream\(\w+\)|"
                   r"(?<=[Ee]vent\.|vent->|pied->)(?:record|block)\(\*?\w+(?:\(\w+\))?\)|adopt\(.*\)|"
                   r"(?<=kept\.)push_back\(std::move\(tensor\)\)));(?P<tail>(?: \};?)?)$")
OWN_ORDER = re.compile(r"^(?P<head>\s+(?:(?:if|for) \(.*\) )?)"
                       r"(?P<call>(?:wait(?:_for_outbox|_for_device)?|come_behind_rounds|let_rounds_come_behind)\(\w*\)|"
                       r"at::accelerator::setDeviceIndex\(.*\));$")
QUERY = re.compile(r"^(?P<head>\s+(?:if|while) \()(?P<condition>!\w+(?:\.\w+)?->(?:query|isCompleted)\(\).*)"
                   r"(?P<tail>\) (?:return\b.*;|\{))$")
ORDER_STREAMS = re.compile(r"(?<![\w:] )\border_streams\((?=.*\);$)")
DEVICE_GUARD = re.compile(r"^(?P<head>\s+const c10::)(?P<kind>OptionalDevice|OptionalStream|MultiStream|Device|Stream)"
                          r"Guard (?P<name>\w+)\((?P<place>.+)\);$")
GUARD = re.compile(r"^(?P<head>\s+(?:\} else )?if \()(?P<condition>.*)(?P<tail>\) (return\b.*;|throw\b.*|continue;|\{))$")


@dataclass
class Site:
    path: str
    line: int  # from 0
    kind: str
    code: str  # the original
    mutated: str  # with {n} for the number
    num_lines: int = 1


def is_balanced(code):
    return all(code.count(a) == code.count(b) for a, b in ("()", "[]", "{}"))


def begins_statement(lines, index):
    """Whether the statement on the line before has ended."""
    before = next((line.split(" //")[0].rstrip() for line in reversed(lines[:index])
                   if line.strip() and not line.strip().startswith("//")), "")
    if before.endswith((";", "{", "}", "public:", "private:")):
        return True
    return bool(re.match(r"\s*(if|for|while|\} else if) \(.*\)$|\s*(else|\} else)$", before)) and is_balanced(before)


def statement_of(lines, index):
    """(indent, code) of a line that is a statement of its own, or None."""
    found = STATEMENT.match(lines[index])
    if not found or NO_STATEMENT.match(lines[index]) or not is_balanced(found["code"]):
        return None
    return (found["indent"], found["code"]) if begins_statement(lines, index) else None


def kind_of_drop(code):
    if FLAG.match(code):
        return "flag not set"
    if WAIT.search(code):
        return "wait dropped"
    return "division dropped" if ".div_(" in code else "statement dropped"


def arguments_at(line, start):
    """The arguments of a call whose opening parenthesis is at `start`, and where it ends; None if it goes on below."""
    depth, begin, found = 0, start + 1, []
    for place in range(start, len(line)):
        if line[place] in "([{":
            depth += 1
        elif line[place] in ")]}":
            depth -= 1
        if depth == 0:
            return found + [line[begin:place].strip()], place + 1
        if depth == 1 and line[place] == ",":
            found.append(line[begin:place].strip())
            begin = place + 1
    return None


def communication_sites(line):
    """A collective of tensor parallelism left out; a result said to be cut in another dimension."""
    if not line.startswith(" "):
        return
    for found in COLLECTIVE.finditer(line):
        if call := arguments_at(line, found.end() - 1):
            (tensor, *_), end = call
            original = line[found.start():end]
            yield ("collective dropped", line[:found.start()] + f"(mutants::on<{{n}}>() ? at::Tensor({tensor}) : "
                   f"at::Tensor({original}))" + line[end:], 1)
    for found in MOVED_CUT.finditer(line):
        if call := arguments_at(line, found.end() - 1):
            (cut, dim, *rest), end = call
            arguments = ", ".join([cut, f"({dim}) + (mutants::on<{{n}}>() ? ({dim}) == 0 ? 1 : -1 : 0)", *rest])
            yield "wrong placement", line[:found.start()] + f"moved_cut({arguments})" + line[end:], 1


def order_sites(line):
    """What orders streams, or keeps memory for them, left out; what is waited for still begins. A guard that guards
    nothing."""
    found = ORDER.match(line)
    if found and is_no_order(found):
        return
    if found and is_balanced(found["object"]) and is_balanced(found["head"].rstrip("{ ")):
        yield ("order dropped", f"{found['head']}{{ auto&& ordered = {found['object']}; if (!mutants::on<{{n}}>()) "
               f"ordered{found['call']}; }}{found['tail']}", 1)
    elif found := OWN_ORDER.match(line):
        yield "order dropped", f"{found['head']}{{ if (!mutants::on<{{n}}>()) {found['call']}; }}", 1
    elif found := QUERY.match(line):
        yield "order dropped", f"{found['head']}!mutants::on<{{n}}>() && ({found['condition']}){found['tail']}", 1
    elif found := ORDER_STREAMS.search(line):
        start = found.start()
        yield "order dropped", f"{line[:start]}(mutants::on<{{n}}>() ? void() : {line[start:-1]});", 1
    elif found := DEVICE_GUARD.match(line):
        place, kind = found["place"], found["kind"]
        optional = kind if kind == "MultiStream" else "Optional" + kind.removeprefix("Optional")
        value = "std::vector<c10::Stream>" if kind == "MultiStream" else f"std::optional<std::decay_t<decltype({place})>>"
        yield ("order dropped", f"{found['head']}{optional}Guard {found['name']}(mutants::on<{{n}}>() ? {value}() : "
               f"{value}({place}));", 1)


def is_no_order(order):
    """Whether a thread ends here, or something else that no stream knows of."""
    return order["object"].startswith(("return ", "const ")) or (order["call"].endswith("join()") and "uses" not in order["object"])


def sites_of_line(lines, index):
    line = lines[index]
    if line.strip().startswith("//"):
        return
    yield from communication_sites(line)
    yield from order_sites(line)
    statement = statement_of(lines, index)
    if statement:
        indent, code = statement
        yield kind_of_drop(code), f"{indent}{{ if (!mutants::on<{{n}}>()) {code} }}", 1
        after = statement_of(lines, index + 1) if index + 1 < len(lines) else None
        if after and after[0] == indent and not begins_branch(lines, index) and order_matters(code, after[1]):
            yield ("order swapped", f"{indent}if (mutants::on<{{n}}>()) {{ {after[1]} {code} }} else {{ {code} "
                   f"{after[1]} }}", 2)
    if found := DIVISION.search(line):
        divisor = found["divisor"]
        if is_balanced(divisor):
            yield "division dropped", line[:found.start()] + f" / mutants::or_one<{{n}}>({divisor})" + line[found.end():], 1
    if found := SLICE.search(line):
        start, end = found.span("start")
        yield "slice off by one", line[:start] + f"({found['start']} + (mutants::on<{{n}}>() ? 1 : 0))" + line[end:], 1
    if found := BOUND.match(line):
        yield ("loop one short", f"{found[1]}{found['left']} + (mutants::on<{{n}}>() ? 1 : 0) < {found['right']}"
               f"{found[4]}", 1)
    if found := GUARD.match(line):
        condition = found["condition"]
        if is_balanced(condition) and ";" not in condition and not re.match(r"(const )?auto|constexpr", condition):
            yield "check dropped", f"{found['head']}!mutants::on<{{n}}>() && ({condition}){found['tail']}", 1


def changes(code):
    """The object that a statement writes, or whose function it calls: "message.started", "queue_". None if it calls a
    free function."""
    found = re.match(r"(\+\+|--)?(?P<name>[\w.]+(->\w+)*?)(\.|->)\w+\(|(\+\+|--)?(?P<target>[\w.]+(->\w+)*)", code)
    if not found or (found["target"] and code[found.end():].startswith("(")):
        return None
    return found["name"] or found["target"]


def order_matters(first, second):
    names = [changes(first), changes(second)]
    return None not in names and any(re.search(rf"(?<![\w.]){re.escape(name)}\b", code) for name, code in zip(names, (second, first)))


def begins_branch(lines, index):
    """Whether the line is a branch without braces, which cannot hold two statements."""
    before = next((line.strip() for line in reversed(lines[:index]) if line.strip()), "")
    return not before.endswith((";", "{", "}")) and not before.startswith("//")


def sites_in(path, text):
    lines = text.splitlines()
    for index, line in enumerate(lines):
        for kind, mutated, num_lines in sites_of_line(lines, index):
            code = " ".join(each.strip() for each in lines[index:index + num_lines])
            yield Site(path, index, kind, code, escaped(mutated), num_lines)


def escaped(mutated):
    """Escapes the braces of the code for str.format, except {n}."""
    return mutated.replace("{", "{{").replace("}", "}}").replace("{{n}}", "{n}")


def apply(text, sites):
    """Applies `sites`, a mapping by number with at most one site on a line."""
    lines = text.splitlines()
    for number, site in sites.items():
        lines[site.line] = site.mutated.format(n=number)
        for other in range(1, site.num_lines):
            lines[site.line + other] = ""
    return "\n".join(lines) + "\n"
