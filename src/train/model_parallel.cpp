#include <tessera/core/error.h>
#include <tessera/train/model_parallel.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/WrapDimUtils.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {

const FieldList<ModelParallelConfig>& ModelParallelConfig::fields() {
  static const FieldList<ModelParallelConfig> list =
      FieldList<ModelParallelConfig>("model_parallel")
          .add("num_devices", &ModelParallelConfig::num_devices_,
               "How many devices hold one model together; 0: all ranks.")
          .add_enum("strategy", &ModelParallelConfig::strategy_,
                    {{"tensor", ModelParallelism::kTensor},
                     {"pipeline", ModelParallelism::kPipeline},
                     {"hybrid", ModelParallelism::kHybrid}},
                    "Whether devices divide each layer, the list of layers, or both.")
          .add("device_ids", &ModelParallelConfig::device_ids_,
               "The accelerator of each rank of a node; empty: that of the same number.")
          .add("pipeline_depth", &ModelParallelConfig::pipeline_depth_, "How many stages the layers form.")
          .add("micro_batch_size", &ModelParallelConfig::micro_batch_size_, "Samples of one forward, in step().")
          .add("split_dim", &ModelParallelConfig::split_dim_, "The dimension that the context's functions divide.")
          .add("gradient_checkpointing", &ModelParallelConfig::gradient_checkpointing_,
               "Layers compute again in backward instead of keeping what it needs.")
          .add("backend", &ModelParallelConfig::backend_, "As the world's.")
          .add("tp_plan", &ModelParallelConfig::tp_plan_, "Which layers are cut how, \"blocks.*.mlp.up: columns\".");
  return list;
}

WorldOptions ModelParallelConfig::world_options() const { return WorldOptions().backend(backend_); }

namespace {

std::string device_faults(const World& world, const std::vector<std::int64_t>& ids) {
  if (ids.empty()) return "";
  if (!at::getAccelerator(false)) return "\n- device_ids: this machine has no accelerator; leave them empty";
  std::string faults;
  if (ids.size() < static_cast<std::size_t>(world.local_size())) {
    faults += "\n- device_ids: expected one for each of the " + std::to_string(world.local_size()) +
              " ranks of this node, found " + std::to_string(ids.size());
  }
  const int count = at::accelerator::deviceCount();
  std::set<std::int64_t> seen;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= count) {
      faults +=
          "\n- device_ids: expected numbers from 0 to " + std::to_string(count - 1) + ", found " + std::to_string(id);
    } else if (!seen.insert(id).second) {
      faults += "\n- device_ids: " + std::to_string(id) + " is there twice: two ranks would share a device";
    }
  }
  return faults;
}

std::string depth_fault(const ModelParallelConfig& config, int num_devices) {
  const int depth = config.pipeline_depth();
  const auto fault = [&](const std::string& expected) {
    return "\n- pipeline_depth: expected " + expected + ", found " + std::to_string(depth);
  };
  switch (config.strategy()) {
    case ModelParallelism::kTensor:
      return depth == 1 ? "" : fault("1 with the strategy \"tensor\"");
    case ModelParallelism::kPipeline:
      return depth == num_devices ? "" : fault("the " + std::to_string(num_devices) + " devices of a model");
    case ModelParallelism::kHybrid:
      return depth > 0 && num_devices % depth == 0
                 ? ""
                 : fault("a divisor of the " + std::to_string(num_devices) + " devices of a model");
  }
  return "";
}

/// One line for each.
std::string faults_of(const World& world, const ModelParallelConfig& config) {
  std::string faults;
  const int num_devices = config.num_devices() == 0 ? world.size() : config.num_devices();
  if (num_devices < 1 || world.size() % num_devices != 0) {
    faults += "\n- num_devices: expected a divisor of the " + std::to_string(world.size()) + " ranks, found " +
              std::to_string(num_devices);
  }
  faults += depth_fault(config, num_devices);
  const std::string& asked = config.backend();
  const std::string found = world.comm().backend();
  const bool in_memory = found == "threads" || found == "fake";
  if (asked != "auto" && asked != "custom" && asked != found && !in_memory) {
    faults +=
        "\n- backend: expected a world on " + asked + ", found " + found + "; start it by init(config.world_options())";
  }
  return faults + device_faults(world, config.device_ids());
}

const ModelParallelConfig& checked(const World& world, const ModelParallelConfig& config) {
  const std::string faults = faults_of(world, config);
  if (!faults.empty()) {
    throw ConfigError("the config of model parallelism cannot be met (rank " + std::to_string(world.rank()) +
                      "):" + faults);
  }
  return config;
}

ParallelizeOptions options_of(const World& world, const ModelParallelConfig& config) {
  const int num_devices = config.num_devices() == 0 ? world.size() : config.num_devices();
  auto layout = ParallelizeOptions::default_layout();
  layout.tp(num_devices / config.pipeline_depth())
      .pp(config.pipeline_depth())
      .micro_batch_size(config.micro_batch_size());
  return ParallelizeOptions().layout(layout).recompute(config.gradient_checkpointing()).tp_plan(config.tp_plan());
}

/// With the axes "tp" and "pp" even for one device.
DeviceMesh mesh_of(const World& world, const ParallelizeOptions& options) {
  const int num_devices = options.tp() * options.pp();
  return DeviceMesh(world, {{"dp", world.size() / num_devices}, {"tp", options.tp()}, {"pp", options.pp()}});
}

at::Device device_of(const World& world, const std::vector<std::int64_t>& ids) {
  const auto accelerator = at::getAccelerator(false);
  if (!accelerator) return at::kCPU;
  if (ids.empty()) return world.device();
  return {*accelerator, static_cast<c10::DeviceIndex>(ids[static_cast<std::size_t>(world.local_rank())])};
}

}  // namespace

ModelParallelContext::ModelParallelContext(const World& world, const ModelParallelConfig& config)
    : config_(checked(world, config)),
      options_(options_of(world, config)),
      mesh_(mesh_of(world, options_)),
      tensor_mesh_(mesh_.sub({"tp"})),
      device_(device_of(world, config.device_ids())) {}

Placement ModelParallelContext::placement_of(const at::Tensor& whole) const {
  const std::int64_t dim = config_.split_dim();
  if (dim >= whole.dim() || dim < -whole.dim()) {
    throw ConfigError("split_dim is " + std::to_string(dim) + ", and the tensor has " + std::to_string(whole.dim()) +
                      " dimensions (rank " + std::to_string(mesh_.world_rank()) + ")");
  }
  return Placement::shard(at::maybe_wrap_dim(dim, whole.dim()));
}

DistributedTensor ModelParallelContext::partition(const at::Tensor& whole) const {
  return DistributedTensor::of(whole, tensor_mesh_, {placement_of(whole)});
}

at::Tensor ModelParallelContext::gather(const DistributedTensor& tensor) const { return tensor.gather(); }

DistributedTensor ModelParallelContext::reduce_scatter(const at::Tensor& tensor) const {
  return DistributedTensor::from_local(tensor, tensor_mesh_, {Placement::partial()}, tensor.sizes().vec())
      .redistribute({placement_of(tensor)});
}

at::Tensor ModelParallelContext::all_reduce(const at::Tensor& tensor) const {
  return DistributedTensor::from_local(tensor, tensor_mesh_, {Placement::partial()}, tensor.sizes().vec()).gather();
}

at::Tensor ModelParallelContext::broadcast(const at::Tensor& tensor, int root) const {
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  tensor_mesh_.comm().broadcast(result, root);
  return result;
}

ParallelizedModel ModelParallelContext::parallelize(const std::shared_ptr<torch::nn::Module>& model) const {
  return tessera::parallelize(model, mesh_, options_);
}

}  // namespace tessera
