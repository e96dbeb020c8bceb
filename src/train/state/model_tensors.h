#pragma once

#include <tessera/checkpoint/held_slice.h>
#include <tessera/shard/parallel_model.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::train {

/// The groups of a checkpoint's tensors: a file, or a set of files, for each.
inline constexpr const char* kModelGroup = "model";
inline constexpr const char* kOptimizerGroup = "optimizer";
inline constexpr const char* kTrainingGroup = "training";

/// What the tensors that an optimizer may be given hold of the model's parameters.
using PartsByTensor = std::unordered_map<const c10::TensorImpl*, std::vector<ParameterPart>>;

/// What one rank holds of a model. A tensor that the model has in several places stands once, under its first name.
struct ModelTensors {
  std::vector<HeldSlice> parameters;                        ///< without those of which this rank holds nothing
  std::vector<HeldSlice> buffers;                           ///< whole on every rank
  std::map<std::string, std::vector<std::int64_t>> shapes;  ///< of all, the same on every rank
  PartsByTensor parts;
};

/// Of parameters in shards the masters, in the parameters' own type, frozen ones too.
/// Throws ConfigError for a model with FullySharded blocks.
ModelTensors tensors_of(const ParallelModel& model);

/// A part of a tensor that is shaped as one that is trained, as a slice of `name`. Shares its memory.
HeldSlice slice_of(const std::string& group, const std::string& name, const ParameterPart& part,
                   const at::Tensor& tensor);

}  // namespace tessera::train
