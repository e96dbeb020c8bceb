#include "comm/engine/tensor_list.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <utility>

#include "comm/engine/engine_backend.h"

namespace tessera::comm {
namespace {

bool adjoin(const std::vector<at::Tensor>& tensors) {
  const std::byte* expected = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
    if (!tensor.is_contiguous() || (expected != nullptr && data != expected)) return false;
    expected = data + tensor.nbytes();
  }
  return true;
}

at::Tensor flat_copy(const std::vector<at::Tensor>& tensors, bool load) {
  std::vector<at::Tensor> rows;
  std::int64_t count = 0;
  for (const auto& tensor : tensors) {
    rows.push_back(tensor.reshape({-1}));
    count += tensor.numel();
  }
  return load ? at::cat(rows) : at::empty({count}, tensors.front().options());
}

}  // namespace

TensorList::TensorList(std::vector<at::Tensor> tensors, bool load) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw ConfigError("an empty list of tensors was passed to a collective");
  for (const auto& tensor : tensors_) {
    if (tensor.scalar_type() != tensors_.front().scalar_type()) {
      throw ConfigError("the tensors of one collective must have one type");
    }
    counts_.push_back(tensor.numel());
  }
  if (!adjoin(tensors_)) copy_ = flat_copy(tensors_, load);
}

Buffer TensorList::flat() const {
  if (copy_.defined()) return buffer_of(copy_);
  Buffer buffer{nullptr, 0, tensors_.front().scalar_type()};
  for (const auto& tensor : tensors_) {
    if (buffer.data == nullptr && tensor.numel() > 0) buffer.data = buffer_of(tensor).data;
    buffer.count += tensor.numel();
  }
  return buffer;
}

void TensorList::store() const {
  if (!copy_.defined()) return;
  std::int64_t begin = 0;
  for (const auto& tensor : tensors_) {
    at::Tensor target = tensor;
    target.copy_(copy_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

}  // namespace tessera::comm
