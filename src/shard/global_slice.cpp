#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace tessera {
namespace {

/// Note [Marks beside tensors]
/// What lies in a tensor's BackendMeta is gone after set_data(), and so after Module::to() and torch::load(): a part
/// would pass for a whole tensor from then on. A table by identity stays right. It holds tensors weakly, so
/// that their memory goes with them and no other tensor gets their address while they are listed.
class Marks {
 public:
  static Marks& of_process() {
    static auto* const marks = new Marks;  // tensors may outlive what is destroyed at the end
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
  return slice.takes_all_selected() && slice.selected_shape() == tensor.sizes().vec();
}

[[noreturn]] void refuse(const at::Tensor& tensor, const Slice& slice) {
  std::ostringstream text;
  text << "a tensor of the shape " << tensor.sizes() << " is not " << slice.text();
  throw ConfigError(text.str());
}

/// TensorImpl lets only its heirs change its keys.
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
  if (tensor.device().type() != memory.device().type()) {
    throw InternalError("a tensor on " + tensor.device().str() + " was to get memory on " + memory.device().str());
  }
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::DispatchKeySet keys = impl.key_set();
  auto marks = impl.get_backend_meta_intrusive_ptr();
  KeysOf::in(impl) = memory.unsafeGetTensorImpl()->key_set();  // or who stands behind a key would be asked
  at::Tensor(tensor).set_data(memory);
  if (marks) impl.set_backend_meta(std::move(marks));
  KeysOf::in(impl) = keys;
}

}  // namespace tessera
