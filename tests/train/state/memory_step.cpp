#include "train/state/memory_step.h"

#include <tessera/checkpoint/safetensors.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstring>

#include "support/require_tensors.h"
#include "support/slice_elements.h"

namespace tessera::testing {

void MemoryStep::add(const RankState& state) {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (const HeldSlice& slice : state.slices) {
    const std::string name = slice.group + "/" + slice.name;
    Stored& stored = tensors_[{slice.group, slice.name}];
    if (!stored.whole.defined()) {
      stored.whole = at::zeros(slice.slice.shape(), slice.values.options());
      stored.came = at::zeros(slice.slice.shape(), at::kBool);
    }
    require_equal(stored.whole.sizes(), at::IntArrayRef(slice.slice.shape()), name + " has one shape");
    require_equal(slice.slice.num_elements(), slice.values.numel(), name + " holds what it says");
    const at::Tensor places = places_of(slice.slice);
    const at::Tensor values = slice.values.flatten();
    const at::Tensor before = at::where(stored.came.take(places), stored.whole.take(places), values);
    require_equal(before, values, name + " is the same on all ranks that hold it");
    stored.whole.view({-1}).index_copy_(0, places, values);
    stored.came.view({-1}).index_fill_(0, places, true);
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
              const at::Tensor values = elements_of(tensor(slice.group, slice.name), slice.slice);
              require_equal(values.scalar_type(), slice.values.scalar_type(), slice.name + " has one type");
              if (slice.values.is_contiguous()) {
                std::memcpy(slice.values.data_ptr(), values.const_data_ptr(), values.nbytes());
              } else {
                slice.values.copy_(values.view(slice.values.sizes()));
              }
            }
          }};
}

}  // namespace tessera::testing
