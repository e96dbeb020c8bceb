#include "offload/kept_tensor.h"

#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace tessera::offload {

KeptTensor::KeptTensor(std::shared_ptr<Places> places, Tier tier, Kind kind, std::int64_t num_elements,
                       at::ScalarType dtype, const std::string& what, const std::string& why_empty)
    : places_(std::move(places)), what_(what), storage_(num_elements, dtype, c10::kCPU, why_empty) {
  const auto num_bytes = static_cast<std::size_t>(storage_.num_bytes());
  if (tier == Tier::kFile) {
    block_ = places_->files->make_block(num_bytes, what_);
    return;
  }
  const auto memory = places_->memory->take(num_bytes, kind, what_);
  std::memset(memory.get(), 0, num_bytes);
  storage_.give(bytes_of(tensor_in(memory, num_elements, dtype)));
}

at::Tensor KeptTensor::stand_in(std::int64_t first, at::IntArrayRef shape) {
  at::Tensor tensor = storage_.view(first, shape);
  const std::int64_t end = first + tensor.numel();
  std::erase_if(taken_, [&](const Taken& one) { return one.by.expired() && first <= one.first && one.end <= end; });
  taken_.push_back({first, end, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
  return tensor;
}

bool KeptTensor::is_taken(std::int64_t first, std::int64_t end) const {
  return std::ranges::any_of(taken_,
                             [&](const Taken& one) { return one.first < end && first < one.end && !one.by.expired(); });
}

bool KeptTensor::was_taken(std::int64_t first, std::int64_t end) const {
  return std::ranges::any_of(taken_, [&](const Taken& one) { return one.first < end && first < one.end; });
}

StreamedTensor KeptTensor::streamed() const {
  return {block_ ? &*block_ : nullptr, block_ ? at::Tensor() : storage_.flat(), storage_.flat().scalar_type()};
}

void KeptTensor::set_values(std::int64_t first, const at::Tensor& values, bool adds) {
  const auto put = [&](const at::Tensor& all) {
    const at::Tensor place = all.narrow(0, first, values.numel());
    if (adds) {
      place.add_(values.reshape({-1}));
    } else {
      place.copy_(values.reshape({-1}));
    }
  };
  if (!block_) return put(storage_.flat());
  const auto num_bytes = static_cast<std::size_t>(storage_.num_bytes());
  const auto memory = places_->memory->take(num_bytes, Kind::kBuffers, what_);
  const std::span bytes(memory.get(), num_bytes);
  const bool is_all = first == 0 && values.numel() == storage_.flat().numel();
  if (adds || !is_all) {
    const Waiting waiting(places_->step_wait_seconds);
    places_->files->read(*block_, 0, bytes, memory).wait();
  }
  put(tensor_in(memory, storage_.flat().numel(), storage_.flat().scalar_type()));
  const Transfer writing = places_->files->write(*block_, 0, bytes, memory);
  if (!places_->options.overlap()) writing.wait();
}

}  // namespace tessera::offload
