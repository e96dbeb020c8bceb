#include "recompute/memory/tally.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>

#include <string>

namespace tessera::recomputation {

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (!intercept::acting_data(tensor)) {
    return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
  }
  const at::Tensor inner = intercept::innermost(tensor);
  return inner.has_storage() ? inner.storage().unsafeGetStorageImpl() : nullptr;
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

Kept::Kept(at::Tensor tensor, std::shared_ptr<Tally> tally)
    : tensor_(std::move(tensor)), version_(version_of(tensor_)), memory_(memory_of(tensor_)), tally_(std::move(tally)) {
  if (!tally_ || memory_ == nullptr) return;
  bytes_ = static_cast<std::int64_t>(static_cast<const c10::StorageImpl*>(memory_)->nbytes());
  tally_->add(memory_, bytes_);
}

Kept::Kept(Kept&& other) noexcept { *this = std::move(other); }

Kept& Kept::operator=(Kept&& other) noexcept {
  if (this == &other) return *this;
  release();
  tensor_ = std::move(other.tensor_);
  version_ = other.version_;
  memory_ = std::exchange(other.memory_, nullptr);
  bytes_ = other.bytes_;
  tally_ = std::move(other.tally_);
  return *this;
}

void Kept::release() {
  if (tally_ && memory_ != nullptr) tally_->remove(memory_, bytes_);
  memory_ = nullptr;
  tally_ = nullptr;
  tensor_.reset();
}

const at::Tensor& Kept::get() const {
  if (version_of(tensor_) == version_) return tensor_;
  throw ConfigError(
      "a tensor that backward needs was changed in place after forward had used it: version " +
      std::to_string(version_of(tensor_)) + " instead of " + std::to_string(version_) +
      ". Run backward before the optimizer's step, and use the form of the operator that is not in place");
}

}  // namespace tessera::recomputation
