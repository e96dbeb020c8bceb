#pragma once

#include <tessera/comm/world.h>
#include <tessera/core/options.h>
#include <tessera/mesh/device_mesh.h>
#include <tessera/shard/distributed_tensor.h>
#include <tessera/shard/parallel_model.h>
#include <tessera/train/parallelize.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// How the devices of one model divide it.
enum class ModelParallelism {
  kTensor,    ///< each has a part of every layer that the plan names
  kPipeline,  ///< each has some of the layers
  kHybrid,    ///< both: `pipeline_depth` stages, whose layers several devices share
};

/// One model on several devices, one device to a rank. Further ranks train copies of it with other batches.
struct ModelParallelConfig {
  /// How many devices hold one model together. 0: all ranks.
  TORCH_ARG(int, num_devices) = 0;
  TORCH_ARG(ModelParallelism, strategy) = ModelParallelism::kTensor;
  /// Which accelerator each rank of a node takes, by its local rank. Empty: that of the same number.
  TORCH_ARG(std::vector<std::int64_t>, device_ids) = {};
  /// How many stages the layers form: 1 for the strategy "tensor", `num_devices` for "pipeline", a divisor of it for
  /// "hybrid".
  TORCH_ARG(int, pipeline_depth) = 1;
  /// Samples of one forward, in step() of the parallelized model. 0: all at once, for the strategy "tensor" alone.
  TORCH_ARG(int, micro_batch_size) = 1;
  /// The dimension that the context's partition(), gather() and reduce_scatter() divide. Negative: from the end.
  TORCH_ARG(std::int64_t, split_dim) = 0;
  /// Layers compute again in backward instead of keeping what it needs (see ParallelizeOptions::recompute).
  TORCH_ARG(bool, gradient_checkpointing) = false;
  /// As WorldOptions::backend.
  TORCH_ARG(std::string, backend) = "auto";
  /// Which layers are cut how: lines of a TensorPlan.
  TORCH_ARG(std::vector<std::string>, tp_plan) = {};

 public:
  static const FieldList<ModelParallelConfig>& fields();

  /// For init(): the world whose backend this is.
  WorldOptions world_options() const;
};

/// The ranks of a ModelParallelConfig: where this one stands, what they say to each other, and the model they train.
///
///   const World world = init(config.world_options());
///   const ModelParallelContext context(world, config);
///   const ParallelizedModel parallel = context.parallelize(model);
///
/// The collectives below are over the devices that share layers, and gradients pass through them as through a
/// DistributedTensor. None writes into its argument.
class ModelParallelContext {
 public:
  /// Nothing is communicated. Throws ConfigError, with all that is wrong, when the config does not fit the world.
  ModelParallelContext(const World& world, const ModelParallelConfig& config);

  const ModelParallelConfig& config() const { return config_; }
  /// "dp" (copies of the model), "tp" (devices that share layers) and "pp" (stages).
  const DeviceMesh& mesh() const { return mesh_; }
  /// This rank's: an accelerator if the machine has one.
  at::Device device() const { return device_; }

  /// This rank's part of a tensor that all ranks have; its `partition("tp")` tells which. Parts are ceiling-sized: the
  /// last ones may be short or empty.
  DistributedTensor partition(const at::Tensor& whole) const;
  /// The reverse. Collective.
  at::Tensor gather(const DistributedTensor& tensor) const;
  /// The sum over the ranks, of which each has its partition. Collective.
  DistributedTensor reduce_scatter(const at::Tensor& tensor) const;
  /// The sum over the ranks. Collective.
  at::Tensor all_reduce(const at::Tensor& tensor) const;
  /// What the rank at `root` of the "tp" axis has, without gradients. Collective.
  at::Tensor broadcast(const at::Tensor& tensor, int root = 0) const;

  /// The model as the config says. Collective: over the mesh. Throws as tessera::parallelize() does.
  ParallelizedModel parallelize(const std::shared_ptr<torch::nn::Module>& model) const;
  template <class Holder>
    requires requires(const Holder& holder) { std::shared_ptr<torch::nn::Module>(holder.ptr()); }
  ParallelizedModel parallelize(const Holder& model) const {
    return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()));
  }

 private:
  Placement placement_of(const at::Tensor& whole) const;

  ModelParallelConfig config_;
  ParallelizeOptions options_;
  DeviceMesh mesh_;
  DeviceMesh tensor_mesh_;
  at::Device device_;
};

}  // namespace tessera
