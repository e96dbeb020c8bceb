#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/tensor_parallel/tensor_plan.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view kAllowed =
    "columns, rows, heads(N) or vocabulary, then perhaps .heads(N), .packed(N) and .transposed";

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError("'" + text + "' is no way to split a layer: " + std::string(kAllowed));
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// "heads(8)": its name and its number; 0 without one.
std::pair<std::string_view, std::int64_t> parse_call(std::string_view word, const std::string& text) {
  const auto open = word.find('(');
  if (open == std::string_view::npos) return {word, 0};
  std::int64_t number = 0;
  const std::string_view digits = word.substr(open + 1);
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (fault != std::errc() || end + 1 != digits.data() + digits.size() || *end != ')' || number < 1) refuse(text);
  return {word.substr(0, open), number};
}

TensorSplit first_word(std::string_view name, std::int64_t number, const std::string& text) {
  if (name == "columns" && number == 0) return split_columns();
  if (name == "rows" && number == 0) return split_rows();
  if (name == "vocabulary" && number == 0) return split_vocabulary();
  if (name == "heads" && number > 0) return split_heads(number);
  refuse(text);
}

struct PlanFile {
  std::vector<std::string> split;

  static const FieldList<PlanFile>& fields() {
    static const auto kList = FieldList<PlanFile>("plan").add(
        "split", &PlanFile::split, "Which layers are cut how: \"blocks.*.mlp.up: columns\".");
    return kList;
  }
};

void require_count(std::int64_t count, const char* what) {
  if (count < 1)
    throw ConfigError(std::string("a layer has at least one ") + what + ", found " + std::to_string(count));
}

}  // namespace

TensorSplit TensorSplit::heads(std::int64_t count) const {
  require_count(count, "head");
  TensorSplit split = *this;
  split.heads_ = count;
  return split;
}

TensorSplit TensorSplit::packed(std::int64_t count) const {
  require_count(count, "packed layer");
  TensorSplit split = *this;
  split.packed_ = count;
  return split;
}

TensorSplit TensorSplit::transposed() const {
  TensorSplit split = *this;
  split.transposed_ = true;
  return split;
}

std::optional<Placement> TensorSplit::placement(const std::vector<std::int64_t>& shape, bool is_embedding) const {
  if (shape.empty()) return std::nullopt;
  const bool is_vector = shape.size() == 1;
  std::int64_t dim = 0;
  if (kind_ == Kind::kRows) {
    if (is_embedding) {
      throw ConfigError(
          "the table of an embedding has no inputs to split by rows: use vocabulary for its rows, columns "
          "for its features");
    }
    if (is_vector) return std::nullopt;
    dim = transposed_ ? 0 : 1;
  } else if (kind_ == Kind::kColumns && !is_vector) {
    dim = transposed_ != is_embedding ? 1 : 0;
  }
  const std::int64_t size = shape[static_cast<std::size_t>(dim)];
  const std::int64_t groups = packed_ * std::max<std::int64_t>(1, heads_);
  if (size % groups != 0) {
    throw ConfigError("dimension " + std::to_string(dim) + " has " + std::to_string(size) + " indices, which " +
                      text() + " does not divide");
  }
  return Placement::shard(dim, packed_, heads_ > 0 ? size / groups : 1);
}

std::string TensorSplit::text() const {
  std::string text = kind_ == Kind::kRows ? "rows" : kind_ == Kind::kVocabulary ? "vocabulary" : "columns";
  if (heads_ > 0) {
    const std::string heads = "heads(" + std::to_string(heads_) + ")";
    text = kind_ == Kind::kColumns ? heads : text + "." + heads;
  }
  if (packed_ > 1) text += ".packed(" + std::to_string(packed_) + ")";
  return transposed_ ? text + ".transposed" : text;
}

TensorSplit TensorSplit::parse(const std::string& text) {
  std::string_view rest = trimmed(text);
  std::optional<TensorSplit> split;
  while (true) {
    const auto dot = rest.find('.');
    const auto [name, number] = parse_call(rest.substr(0, dot), text);
    if (!split) {
      split = first_word(name, number, text);
    } else if (name == "heads" && number > 0) {
      split = split->heads(number);
    } else if (name == "packed" && number > 0) {
      split = split->packed(number);
    } else if (name == "transposed" && number == 0) {
      split = split->transposed();
    } else {
      refuse(text);
    }
    if (dot == std::string_view::npos) return *split;
    rest.remove_prefix(dot + 1);
  }
}

TensorSplit split_columns() { return TensorSplit(TensorSplit::Kind::kColumns); }
TensorSplit split_heads(std::int64_t count) { return split_columns().heads(count); }
TensorSplit split_rows() { return TensorSplit(TensorSplit::Kind::kRows); }
TensorSplit split_vocabulary() { return TensorSplit(TensorSplit::Kind::kVocabulary); }

TensorPlan TensorPlan::parse(const std::vector<std::string>& lines) {
  TensorPlan plan;
  for (const std::string& line : lines) {
    const auto colon = line.find(':');
    const std::string pattern(trimmed(std::string_view(line).substr(0, colon)));
    if (colon == std::string::npos || pattern.empty()) {
      throw ConfigError("'" + line + "' is no line of a plan: a name, a colon, and " + std::string(kAllowed));
    }
    plan.add(pattern, TensorSplit::parse(std::string(trimmed(std::string_view(line).substr(colon + 1)))));
  }
  return plan;
}

TensorPlan TensorPlan::load(const std::filesystem::path& path) {
  PlanFile file;
  load_config(path, file);
  return parse(file.split);
}

std::vector<std::string> TensorPlan::lines() const {
  std::vector<std::string> lines;
  for (const Entry& entry : entries_) lines.push_back(entry.pattern + ": " + entry.split.text());
  return lines;
}

}  // namespace tessera
