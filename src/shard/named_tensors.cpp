#include <tessera/shard/named_tensors.h>

#include <tessera/core/error.h>

#include <torch/nn/module.h>

#include <unordered_set>

namespace tessera {
namespace {

/// Adds each tensor once: a model may hold a module, or a parameter, in several places.
class Collector {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || !seen_.insert(tensor.unsafeGetTensorImpl()).second) return;
    found_.names.push_back(name);
    found_.tensors.push_back(tensor);
  }
  NamedTensors take() { return std::move(found_); }

 private:
  std::unordered_set<const c10::TensorImpl*> seen_;
  NamedTensors found_;
};

}  // namespace

NamedTensors trained_parameters_of(const torch::nn::Module& model) {
  Collector collector;
  for (const auto& entry : model.named_parameters()) {
    if (entry.value().requires_grad()) collector.add(entry.key(), entry.value());
  }
  NamedTensors found = collector.take();
  if (found.tensors.empty()) {
    throw ConfigError("the model " + model.name() +
                      " has no parameter that requires a gradient: there is nothing to average");
  }
  return found;
}

NamedTensors parameters_of(const torch::nn::Module& model) {
  Collector collector;
  for (const auto& entry : model.named_parameters()) collector.add(entry.key(), entry.value());
  return collector.take();
}

NamedTensors state_of(const torch::nn::Module& model) {
  Collector collector;
  for (const auto& entry : model.named_parameters()) collector.add(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) collector.add(entry.key(), entry.value());
  return collector.take();
}

NamedTensors buffers_of(const torch::nn::Module& model) {
  Collector collector;
  for (const auto& entry : model.named_buffers()) collector.add(entry.key(), entry.value());
  return collector.take();
}

}  // namespace tessera
