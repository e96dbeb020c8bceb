#include "data_parallel/replicas/mirror.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <map>

namespace tessera::data_parallel {
namespace {

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_alias_of(b);
}

void refresh_parameter(Mirror::Pair& pair) {
  if (pair.clone.requires_grad() != pair.original.requires_grad()) {
    pair.clone.requires_grad_(pair.original.requires_grad());
  }
  if (pair.clone.device() == pair.original.device()) {
    // The model's memory may have changed since: by to(), or by a loaded state.
    if (!is_same_memory(pair.clone, pair.original)) pair.clone.set_data(pair.original.detach());
    return;
  }
  const auto version = static_cast<std::int64_t>(pair.original._version());
  if (version == pair.version) return;
  pair.clone.variable_data().copy_(pair.original.detach(), /*non_blocking=*/true);
  pair.version = version;
}

// Only what differs, and past the version counter: a graph that waits for its backward may have kept a table that is
// a buffer. BatchNorm changes its statistics without counting, so the values are compared.
void refresh_buffer(const at::Tensor& original, const at::Tensor& clone) {
  const bool comparable =
      original.is_cpu() && clone.is_cpu() && original.sizes() == clone.sizes() && original.dtype() == clone.dtype();
  if (comparable && at::equal(original, clone)) return;
  clone.variable_data().copy_(original.detach(), /*non_blocking=*/true);
}

}  // namespace

Mirror::Mirror(std::shared_ptr<torch::nn::Module> original, std::shared_ptr<torch::nn::Module> clone)
    : original_modules_(original->modules()), clone_modules_(clone->modules()) {
  const auto clones = clone->named_parameters();
  std::map<const void*, const void*> original_of;
  for (const auto& item : original->named_parameters()) {
    const at::Tensor* of_clone = clones.find(item.key());
    if (of_clone == nullptr || of_clone->sizes() != item.value().sizes()) {
      throw ConfigError("the clone of the model has no parameter \"" + item.key() +
                        "\" of the same shape; register it in reset(), which clone() calls");
    }
    const void* const identity = item.value().unsafeGetTensorImpl();
    const auto [known, is_new] = original_of.emplace(of_clone->unsafeGetTensorImpl(), identity);
    if (is_new) {
      parameters_.push_back({item.value(), *of_clone});
    } else if (known->second != identity) {
      throw ConfigError("the parameter \"" + item.key() +
                        "\" is shared in the clone of the model but not in the model");
    }
  }
  const auto buffers = clone->named_buffers();
  for (const auto& item : original->named_buffers()) {
    const at::Tensor* of_clone = buffers.find(item.key());
    if (item.value().defined() && of_clone != nullptr) buffers_.emplace_back(item.value(), *of_clone);
  }
}

void Mirror::refresh() {
  const at::NoGradGuard no_grad;
  for (Pair& pair : parameters_) refresh_parameter(pair);
  for (const auto& [original, clone] : buffers_) refresh_buffer(original, clone);
  // A parent sets its children's mode too, and comes before them.
  for (std::size_t i = 0; i < original_modules_.size(); ++i) {
    const bool training = original_modules_[i]->is_training();
    if (clone_modules_[i]->is_training() != training) clone_modules_[i]->train(training);
  }
}

std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  try {
    auto clone = module.clone(device);
    generator.set_state(state);
    TORCH_CHECK(clone->modules().size() == module.modules().size(), "the clone has other submodules");
    return clone;
  } catch (const c10::Error& error) {
    generator.set_state(state);
    throw ConfigError("DataParallel needs a model that can be cloned, and " + module.name() +
                      " cannot: derive it and its submodules from torch::nn::Cloneable, and register parameters, "
                      "buffers and submodules in reset() instead of the constructor. LibTorch says: " +
                      error.what_without_backtrace());
  }
}

}  // namespace tessera::data_parallel
