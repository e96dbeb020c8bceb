#pragma once

#include <tessera/fsdp/fsdp_options.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/shard/model_state.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/gradient_reduction.h"
#include "fsdp/guards.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// What a sharded model consists of on one rank: units in shards, and tensors that stay whole. Says which slices of the
/// global tensors they are. Knows nothing of passes.
class ModelParts {
 public:
  /// Shards the model. Collective: over all ranks.
  ModelParts(std::shared_ptr<torch::nn::Module> model, UnitRanks ranks, const FsdpOptions& options);
  ModelParts(const ModelParts&) = delete;
  ModelParts& operator=(const ModelParts&) = delete;

  const std::shared_ptr<torch::nn::Module>& model() const { return model_; }
  /// What cuts the model along another axis; null: nothing does.
  const std::shared_ptr<shard::ModelState>& inner() const { return inner_; }
  const UnitRanks& ranks() const { return ranks_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  std::vector<int> all_units() const;
  /// The units that hold a parameter of the module that `options` name; all of them if they name none.
  std::vector<int> units_of(const GatherOptions& options) const;

  /// Parameters that stay whole.
  const NamedTensors& replicated() const { return replicated_; }
  /// Whether it was trained when the model was sharded.
  bool trains_replicated(std::size_t index) const { return trains_replicated_[index]; }
  /// Throws ConfigError for one that was unfrozen since: it was not among `sharded.parameters()`.
  void require_replicated_unchanged() const;
  NamedTensors buffers() const;

  FlatSources& sources() { return *sources_; }
  /// The memory of gathered parameters.
  BufferPool& flat_buffers() { return sources_->buffers(); }
  const BufferPool& flat_buffers() const { return sources_->buffers(); }
  /// The memory of gradients.
  GradientBuffers& gradient_buffers() { return *gradient_buffers_; }
  /// Of all units' flat parameters.
  ThreadGate& gate() { return *gate_; }

  std::vector<ModelAxis> axes() const;
  std::vector<TrainedTensor> trained() const;
  std::vector<StateSlice> state_slices() const;
  /// The unit of this tensor is about to be written to, if there is one.
  void begin_write(const at::Tensor& held) const;
  /// Throws ConfigError, on every rank, if these ranks hold only a part of the model: `what` needs all of it.
  void require_uncut(const std::string& what) const;
  /// The fields that count bytes of parameters; the others are 0.
  FsdpStatistics byte_counts() const;

 private:
  void prepare_whole_tensors(const FsdpOptions& options);
  FlatSourcesSpec spec_of_sources(const std::vector<UnitPlan>& plans, const FsdpOptions& options,
                                  std::size_t buffer_bytes) const;
  void make_units(const std::vector<UnitPlan>& plans, const FsdpOptions& options);
  std::vector<StateSlice> slices_elsewhere() const;
  /// Parameters that `inner_` has put on other ranks.
  std::vector<TrainedTensor> trained_elsewhere() const;
  void require_uncut(const std::string& what, const std::string& name, const Slice& slice) const;
  void require_uncut_parameters(const std::string& what) const;

  std::shared_ptr<torch::nn::Module> model_;
  std::shared_ptr<shard::ModelState> inner_;  // what cuts the model along another axis; null: nothing
  UnitRanks ranks_;
  NamedTensors replicated_;
  std::vector<bool> trains_replicated_;
  std::shared_ptr<FlatSources> sources_;
  std::shared_ptr<ThreadGate> gate_ = std::make_shared<ThreadGate>();
  std::optional<GradientBuffers> gradient_buffers_;
  std::vector<std::unique_ptr<Unit>> units_;
};

}  // namespace tessera::fsdp
