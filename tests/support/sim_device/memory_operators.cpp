#include "support/sim_device/memory_operators.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "support/sim_device/allocators.h"
#include "support/sim_device/boxed.h"
#include "support/sim_device/runtime.h"

// The operators that make memory, copy it, or say whose it is.

namespace tessera::testing::sim {
namespace {

using at::Tensor;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
             std::optional<at::Device> device, std::optional<bool> pins, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pins.value_or(false), "only memory of the host can be pinned");
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                     std::optional<bool> /*pins*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

/// On the source's stream, in order with the destination's before and behind it.
void copy_between_devices(const Tensor& from, const Tensor& to) {
  const c10::Stream there = current_stream(from.device().index());
  const c10::Stream here = current_stream(to.device().index());
  c10::Event before(kSim);
  c10::Event behind(kSim);
  before.record(here);
  before.block(there);
  launch(there, "copy", {{from, false}, {to, true}}, [from = on_host(from), to = on_host(to)]() mutable {
    const Below below;
    to.copy_(from);
  });
  behind.record(there);
  behind.block(here);
}

Tensor copy_from(const Tensor& source, const Tensor& to, bool non_blocking) {
  const Below below;
  const Tensor from = source.expand_as(to);
  const bool from_sim = is_on_sim(source);
  const bool to_sim = is_on_sim(to);
  if (from_sim && to_sim && source.device() != to.device()) {
    copy_between_devices(from, to);
    return to;
  }
  const bool from_pinned = !from_sim && source.is_pinned();
  const bool to_pinned = !to_sim && to.is_pinned();
  std::vector<Access> accesses;
  if (from_sim || from_pinned) accesses.push_back({from, false});
  if (to_sim || to_pinned) accesses.push_back({to, true});
  // Memory that is not pinned is read at once, and written when the host has waited.
  const Tensor for_kernel = from_sim || from_pinned ? on_host(from) : from.clone();
  Tensor place = to_sim || to_pinned ? on_host(to) : to;
  const c10::Stream stream = current_stream((to_sim ? to : source).device().index());
  launch(stream, "copy", accesses, [for_kernel, place]() mutable {
    const Below below;
    place.copy_(for_kernel);
  });
  const bool goes_on = (from_sim && to_sim) || (non_blocking && (from_pinned || to_pinned));
  if (!goes_on) Runtime::get().wait(Runtime::get().queue(stream));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  resize_on_sim(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

/// As the CPU draws and multiplies it.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double probability, std::optional<bool> /*trains*/) {
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - probability);
  return {input.mul(mask).mul_(probability == 1 ? 0.0 : 1 / (1 - probability)), mask};
}

Tensor& set_part_of_storage(Tensor& tensor, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                            at::IntArrayRef strides) {
  return at::cpu::set_(tensor, std::move(storage), offset, sizes, strides);
}
Tensor& set_tensor(Tensor& tensor, const Tensor& other) { return at::native::set_tensor_(tensor, other); }
Tensor& set_storage(Tensor& tensor, at::Storage storage) { return at::native::set_(tensor, std::move(storage)); }

void record_stream(Tensor& tensor, at::Stream stream) {
  c10::impl::VirtualGuardImpl(kSim).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

/// So that `Module::to()` moves a model to the device, as it does to a GPU.
bool has_compatible_shallow_copy_type(const Tensor& /*self*/, const Tensor& /*from*/) { return true; }

}  // namespace

const Tensor& resize_on_sim(const Tensor& tensor, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  if (impl->sizes() != sizes) impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  const auto num_bytes =
      tensor.numel() == 0 ? 0 : static_cast<std::size_t>(tensor.storage_offset() + tensor.numel()) * tensor.itemsize();
  if (num_bytes > tensor.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), num_bytes);
  }
  return tensor;  // NOLINT(bugprone-return-const-ref-from-parameter): as `resize_` does
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize_on_sim);
  library.impl("set_.source_Storage_storage_offset", &set_part_of_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_.source_Storage", &set_storage);
  library.impl("native_dropout", &native_dropout);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// Copies take conjugated and negated views as they are. LibTorch would first make them real, by a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace tessera::testing::sim
