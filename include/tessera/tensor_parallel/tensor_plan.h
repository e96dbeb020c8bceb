#pragma once

#include <tessera/shard/placement.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// How the weight of a layer is cut over the ranks of an axis. Made by split_columns() and its like.
class TensorSplit {
 public:
  enum class Kind : std::uint8_t { kColumns, kRows, kVocabulary };

  explicit TensorSplit(Kind kind) : kind_(kind) {}

  /// The columns or rows that are cut belong to so many heads, and a head stays whole.
  TensorSplit heads(std::int64_t count) const;
  /// The weight holds so many layers side by side, as one of q, k and v does: each is cut.
  TensorSplit packed(std::int64_t count) const;
  /// The weight is [inputs, outputs], as in GPT-2's files, instead of torch::nn::Linear's [outputs, inputs].
  TensorSplit transposed() const;

  /// The cut of a parameter of this shape, which belongs to an embedding or not. Nullopt: all ranks have all of it, as
  /// of a bias that is added after a sum. Throws ConfigError when heads or packed layers do not divide it.
  std::optional<Placement> placement(const std::vector<std::int64_t>& shape, bool is_embedding) const;

  /// "columns", "heads(8).packed(3)", "rows.heads(8)", "vocabulary", each perhaps with ".transposed".
  std::string text() const;
  /// The reverse. Throws ConfigError with what is allowed.
  static TensorSplit parse(const std::string& text);

  bool operator==(const TensorSplit&) const = default;

 private:
  Kind kind_;
  std::int64_t heads_ = 0;
  std::int64_t packed_ = 1;
  bool transposed_ = false;
};

/// Each rank computes some of the layer's outputs: rows of torch::nn::Linear's weight, and of its bias; output channels
/// of a convolution; columns of an embedding; channels of a BatchNorm. What follows sees a tensor that is cut.
TensorSplit split_columns();
/// The same for a layer whose outputs are `count` heads.
TensorSplit split_heads(std::int64_t count);
/// Each rank computes with some of the layer's inputs, and the results are added up. The bias is not cut. For the layer
/// behind one that was split by columns.
TensorSplit split_rows();
/// Each rank has some rows of an embedding's table.
TensorSplit split_vocabulary();

/// Which layers are cut how. Patterns are names of modules or parameters, in which `*` stands for any characters but a
/// dot.
class TensorPlan {
 public:
  struct Entry {
    std::string pattern;
    TensorSplit split;
  };

  TensorPlan() = default;
  TensorPlan(std::initializer_list<Entry> entries) : entries_(entries) {}
  /// Lines such as "blocks.*.mlp.up: columns". Throws ConfigError naming the line.
  static TensorPlan parse(const std::vector<std::string>& lines);
  /// From a TOML file with the list `split` of such lines.
  static TensorPlan load(const std::filesystem::path& path);

  void add(std::string pattern, const TensorSplit& split) { entries_.push_back({std::move(pattern), split}); }
  const std::vector<Entry>& entries() const { return entries_; }
  /// As parse() reads it.
  std::vector<std::string> lines() const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace tessera
