#include <tessera/shard/tensor_bytes.h>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

namespace tessera {

at::Tensor tensor_on(c10::DataPtr bytes, std::int64_t num_elements, at::ScalarType dtype) {
  const c10::InferenceMode ordinary(false);
  const auto num_bytes = static_cast<std::size_t>(num_elements) * c10::elementSize(dtype);
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), num_bytes,
                                                                   std::move(bytes), nullptr, false));
  return at::empty({0}, at::TensorOptions(dtype)).set_(storage, 0, {num_elements}, {1});
}

c10::DataPtr bytes_of(at::Tensor tensor) {
  auto kept = std::make_unique<at::Tensor>(std::move(tensor));
  void* const bytes = kept->mutable_data_ptr();
  return {bytes, kept.release(), [](void* context) { delete static_cast<at::Tensor*>(context); },
          c10::Device(c10::kCPU)};
}

std::uint64_t fingerprint_of(const at::Tensor& tensor) {
  // Several sums side by side: one would wait for its own multiplication at every word.
  constexpr std::size_t kLanes = 8;
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
  std::array<std::uint64_t, kLanes> lanes{};
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = kFactor * (i + 1);
  const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::size_t left = tensor.nbytes();
  std::array<std::uint64_t, kLanes> words{};
  for (; left > 0; left -= std::min(left, sizeof(words))) {
    if (left < sizeof(words)) words = {};
    std::memcpy(words.data(), bytes, std::min(left, sizeof(words)));
    bytes += std::min(left, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = (lanes[i] ^ words[i]) * kFactor;
  }
  std::uint64_t all = tensor.nbytes();
  // The upper bits of a product depend on all bits, its lower ones on the lower ones alone.
  for (const std::uint64_t lane : lanes) all = (all ^ lane ^ lane >> 32U) * kFactor;
  return all;
}

}  // namespace tessera
