#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>
#include <tessera/shard/global_slice.h>
#include <tessera/shard/named_tensors.h>

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <torch/nn/module.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {
namespace {

/// Note [Marks beside tensors]
/// A tensor's BackendMeta is lost by set_data(), and so by Module::to() and torch::load(); from then on a part would
/// look like a whole tensor. A table by tensor identity stays correct. It holds weak references: the memory of a tensor
/// is freed with it, but no other tensor gets its address while it is listed.
class Marks {
 public:
  static Marks& of_process() {
    static auto* const marks = new Marks;  // never destroyed: tensors may outlive statics
    return *marks;
  }

  void set(const at::Tensor& tensor, const Slice& slice) {
    const std::lock_guard lock(mutex_);
    std::erase_if(marks_, [](const auto& mark) { return mark.second.tensor.expired(); });
    marks_.insert_or_assign(tensor.unsafeGetTensorImpl(), Mark{Weak(tensor.getIntrusivePtr()), slice});
    is_used_ = true;
  }

  std::optional<Slice> find(const at::Tensor& tensor) {
    if (!is_used_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const auto found = marks_.find(tensor.unsafeGetTensorImpl());
    if (found == marks_.end()) return std::nullopt;
    return found->second.slice;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Mark {
    Weak tensor;
    Slice slice;
  };

  std::atomic<bool> is_used_ = false;
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Mark> marks_;
};

bool is_shape_of(const Slice& slice, const at::Tensor& tensor) {
  return slice.takes_all_selected() && slice.selected_shape() == intercept::held_sizes(tensor).vec();
}

[[noreturn]] void refuse(const at::Tensor& tensor, const Slice& slice) {
  std::ostringstream text;
  text << "a tensor of the shape " << tensor.sizes() << " is not " << slice.text();
  throw ConfigError(text.str());
}

c10::DispatchKeySet with_device_of(c10::DispatchKeySet other, c10::DispatchKeySet keys) {
  const c10::BackendComponent before = keys.highestBackendKey();
  if (before == other.highestBackendKey()) return keys;
  return (keys - c10::getAutocastRelatedKeySetFromBackend(before)).remove_backend(before) | other;
}

/// TensorImpl lets only derived classes change its keys.
struct KeysOf : c10::TensorImpl {
  static c10::DispatchKeySet& in(c10::TensorImpl& impl) { return impl.*&KeysOf::key_set_; }
};

}  // namespace

Slice global_slice(const at::Tensor& tensor) {
  const auto slice = Marks::of_process().find(tensor);
  if (!slice) return Slice::whole(tensor.sizes().vec());
  if (!is_shape_of(*slice, tensor)) refuse(tensor, *slice);
  return *slice;
}

void set_global_slice(const at::Tensor& tensor, const Slice& slice) {
  if (!is_shape_of(slice, tensor)) refuse(tensor, slice);
  Marks::of_process().set(tensor, slice);
}

void set_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet of_memory = memory.unsafeGetTensorImpl()->key_set();
  const c10::DispatchKeySet keys = with_device_of(of_memory, impl.key_set());
  auto marks = impl.get_backend_meta_intrusive_ptr();
  KeysOf::in(impl) = of_memory;  // else set_data() would be dispatched by the old keys
  at::Tensor(tensor).set_data(memory);
  if (marks) impl.set_backend_meta(std::move(marks));
  KeysOf::in(impl) = keys;
}

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
  return here(std::move(found));
}

NamedTensors here(NamedTensors tensors) {
  NamedTensors found;
  for (std::size_t i = 0; i < tensors.tensors.size(); ++i) {
    if (intercept::is_elsewhere(tensors.tensors[i])) continue;
    found.names.push_back(std::move(tensors.names[i]));
    found.tensors.push_back(std::move(tensors.tensors[i]));
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
