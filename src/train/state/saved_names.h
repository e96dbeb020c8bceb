#pragma once

#include <tessera/checkpoint/manifest.h>
#include <tessera/train/restore_options.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::train {

/// The names of a saved state, and which of them are asked for: so what it lacks, and what it has too much, is known
/// before anything is changed. Names are the same on every rank, so all find the same.
/// Requires: `manifest` outlives it.
class SavedNames {
 public:
  SavedNames(const Manifest& manifest, RestoreOptions options);

  /// What a parameter or buffer of the model is called there.
  const std::string& saved_name(const std::string& name) const;

  /// Null when there is none. Asking does not count as taking it.
  const ManifestTensor* find_tensor(const std::string& group, const std::string& name) const;
  const ManifestValue* find_value(const std::string& name) const;
  /// All of the group whose names begin so.
  std::vector<const ManifestTensor*> find_tensors(const std::string& group, const std::string& prefix) const;

  /// Whether it is there, with that shape; else it is noted what is wrong.
  bool take_tensor(const std::string& group, const std::string& name, const std::vector<std::int64_t>& shape);
  /// The same for values; bool, std::int64_t, double or std::string. A whole number serves as a double.
  template <class Value>
  std::optional<Value> take_value(const std::string& name);
  /// Tensors of the group, and values, that begin so belong to another layout or rank: they may be there or not.
  void pass_over(const std::string& group, const std::string& prefix);
  void note_missing(const std::string& name) { missing_.push_back(name); }
  void note_fault(const std::string& text) { faults_.push_back(text); }

  bool allows_missing() const { return options_.allow_missing(); }
  const std::vector<std::string>& missing() const { return missing_; }
  /// What nobody has asked for.
  std::vector<std::string> unexpected() const;
  /// Throws ConfigError with all that is wrong, unless the options allow it.
  void require_complete() const;

 private:
  using Key = std::pair<std::string, std::string>;  // group, name

  /// As what was imported, and nobody has asked for weights alone.
  bool holds_weights_alone() const;

  const Manifest& manifest_;
  RestoreOptions options_;
  std::map<Key, const ManifestTensor*> tensors_;
  std::set<Key> taken_tensors_;
  std::set<std::string> taken_values_;
  std::vector<std::string> missing_;
  std::vector<std::string> faults_;
};

}  // namespace tessera::train
