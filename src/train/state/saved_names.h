#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/manifest.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/train/training_state.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::train {

/// The names of a saved state, and which of them this program uses. So missing and unexpected names are known before
/// anything is changed. Names are the same on every rank, so all ranks find the same.
/// Requires: `manifest` outlives it.
class SavedNames {
 public:
  SavedNames(const Manifest& manifest, RestoreOptions options);

  /// The name of a parameter or buffer of the model in the saved state.
  const std::string& saved_name(const std::string& name) const;

  /// Null when there is none. Asking does not count as taking it.
  const ManifestTensor* find_tensor(const std::string& group, const std::string& name) const;
  const ManifestValue* find_value(const std::string& name) const;
  /// All tensors of the group whose names begin with `prefix`.
  std::vector<const ManifestTensor*> find_tensors(const std::string& group, const std::string& prefix) const;

  /// Whether the tensor is there, with that shape; if not, records what is wrong.
  bool take_tensor(const std::string& group, const std::string& name, const std::vector<std::int64_t>& shape);
  /// The same for values; bool, std::int64_t, double or std::string. A whole number is accepted as a double.
  template <class Value>
  std::optional<Value> take_value(const std::string& name);
  /// Tensors of the group, and values, whose names begin with `prefix` may be there or not: they belong to other
  /// layouts or ranks.
  void pass_over(const std::string& group, const std::string& prefix);
  void note_missing(const std::string& name) { missing_.push_back(name); }
  void note_fault(const std::string& text) { faults_.push_back(text); }

  bool allows_missing() const { return options_.allow_missing(); }
  const std::vector<std::string>& missing() const { return missing_; }
  /// The names that were not taken.
  std::vector<std::string> unexpected() const;
  /// Throws ConfigError with all that is wrong, unless the options allow it.
  void require_complete() const;

 private:
  using Key = std::pair<std::string, std::string>;  // group, name

  /// True for an imported step that is not restored with `weights_only`.
  bool holds_weights_alone() const;

  const Manifest& manifest_;
  RestoreOptions options_;
  std::map<Key, const ManifestTensor*> tensors_;
  std::set<Key> taken_tensors_;
  std::set<std::string> taken_values_;
  std::vector<std::string> missing_;
  std::vector<std::string> faults_;
};

/// The groups of a checkpoint's tensors: a file, or a set of files, for each.
inline constexpr const char* kModelGroup = "model";
inline constexpr const char* kOptimizerGroup = "optimizer";
inline constexpr const char* kTrainingGroup = "training";

/// For each tensor that an optimizer may be given, the parts of the model's parameters that it holds.
using PartsByTensor = std::unordered_map<const c10::TensorImpl*, std::vector<ParameterPart>>;

/// What one rank holds of a model. A tensor that the model has in several places is listed once, under its first name.
struct ModelTensors {
  std::vector<HeldSlice> parameters;                        ///< only those of which this rank holds something
  std::vector<HeldSlice> buffers;                           ///< whole on every rank
  std::map<std::string, std::vector<std::int64_t>> shapes;  ///< of all, the same on every rank
  PartsByTensor parts;
};

/// For sharded parameters these are the master copies, in the parameters' own type, frozen ones included.
ModelTensors tensors_of(const ParallelModel& model);

/// A part of `tensor`, which has the shape of a trained tensor, as a slice of `name`. Shares its memory.
HeldSlice slice_of(const std::string& group, const std::string& name, const ParameterPart& part,
                   const at::Tensor& tensor);

}  // namespace tessera::train
