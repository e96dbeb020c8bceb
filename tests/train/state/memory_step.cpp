#include "train/state/memory_step.h"

#include <tessera/checkpoint/safetensors.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

#include "support/require.h"

namespace tessera::testing {
namespace {

/// The box of `place` within a tensor. Shares its memory.
at::Tensor box_of(const at::Tensor& whole, const SlicePlace& place) {
  at::Tensor box = whole.view(place.view);
  for (std::size_t dim = 0; dim < place.view.size(); ++dim) {
    box = box.narrow(static_cast<std::int64_t>(dim), place.starts[dim], place.sizes[dim]);
  }
  return box;
}

}  // namespace

void MemoryStep::add(const RankState& state) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (const HeldSlice& slice : state.slices) {
    const std::string name = slice.group + "/" + slice.name;
    Stored& stored = tensors_[{slice.group, slice.name}];
    if (!stored.whole.defined()) {
      stored.whole = at::zeros(slice.shape, slice.values.options());
      stored.came = at::zeros(slice.shape, at::kBool);
    }
    require(stored.whole.sizes() == at::IntArrayRef(slice.shape), name + " has one shape");
    require(slice.place.num_elements() == slice.values.numel(), name + " holds what it says");
    const at::Tensor into = box_of(stored.whole, slice.place);
    const at::Tensor came = box_of(stored.came, slice.place);
    const at::Tensor values = slice.values.reshape(into.sizes());
    require(at::equal(at::where(came, into, values), values), name + " is the same on all ranks that hold it");
    into.copy_(values);
    came.fill_(true);
  }
  for (const auto& [name, value] : state.values) {
    const auto [found, is_new] = manifest_.values.emplace(name, value);
    require(is_new || found->second == value, name + " is the same on all ranks");
  }
}

StateSource MemoryStep::source() {
  const std::lock_guard lock(mutex_);
  manifest_.tensors.clear();
  for (const auto& [key, stored] : tensors_) {
    require(stored.came.all().item<bool>(), key.first + "/" + key.second + " is complete");
    ManifestTensor tensor;
    tensor.group = key.first;
    tensor.name = key.second;
    tensor.dtype = to_stored_dtype(stored.whole.scalar_type());
    tensor.shape = stored.whole.sizes().vec();
    manifest_.tensors.push_back(std::move(tensor));
  }
  // By pointer, as files are read: nobody hears of it.
  return {manifest_, [this](const std::vector<HeldSlice>& slices) {
            for (const HeldSlice& slice : slices) {
              const at::Tensor box = box_of(tensor(slice.group, slice.name), slice.place).contiguous();
              require(box.scalar_type() == slice.values.scalar_type(), slice.name + " has one type");
              if (slice.values.is_contiguous()) {
                std::memcpy(slice.values.data_ptr(), box.const_data_ptr(), box.nbytes());
              } else {
                slice.values.copy_(box);
              }
            }
          }};
}

}  // namespace tessera::testing
