#include <tessera/checkpoint/read_slices.h>
#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <string>

#include "checkpoint/safetensors_header.h"

namespace tessera {
namespace {

std::string described(StoredDtype dtype, const std::vector<std::int64_t>& shape) {
  return std::string(dtype_name(dtype)) + " " + checkpoints::shape_text(shape);
}

void check_fits(const SavedStep& step, const HeldSlice& slice) {
  const ManifestTensor* const stored = step.manifest().find(slice.group, slice.name);
  const std::string title = step.folder().string() + ": tensor \"" + slice.name + "\" of \"" + slice.group + "\"";
  if (stored == nullptr) throw ConfigError(title + " is not there");
  const StoredDtype wanted = to_stored_dtype(slice.values.scalar_type());
  if (stored->dtype == wanted && stored->shape == slice.slice.shape()) return;
  throw ConfigError(title + " is " + described(stored->dtype, stored->shape) + ", expected " +
                    described(wanted, slice.slice.shape()));
}

void read_slice(const SavedStep& step, const HeldSlice& slice) {
  const at::Tensor values = slice.values.detach();
  const bool in_place = values.is_cpu() && values.is_contiguous();
  const at::Tensor host = in_place ? values : at::empty(values.sizes(), values.options().device(at::kCPU));
  step.read(slice.group, slice.name, slice.slice, {static_cast<std::byte*>(host.data_ptr()), host.nbytes()});
  if (!in_place) values.copy_(host);
}

}  // namespace

void read_slices(const SavedStep& step, const std::vector<HeldSlice>& slices) {
  const at::NoGradGuard no_grad;
  for (const HeldSlice& slice : slices) {
    check_fits(step, slice);
    step.announce_reads(slice.values.nbytes());
  }
  for (const HeldSlice& slice : slices) {
    if (slice.slice.num_elements() > 0) read_slice(step, slice);
  }
}

}  // namespace tessera
