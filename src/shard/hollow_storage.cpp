#include <tessera/core/error.h>
#include <tessera/shard/hollow_storage.h>

#include <ATen/ATen.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

c10::DataPtr no_bytes(c10::Device device) { return {nullptr, device}; }

std::vector<std::int64_t> row_major_strides(at::IntArrayRef shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  return strides;
}

/// Made by hand: `set_` looks at the bytes, which may be absent, and operators make views that autograd knows of.
at::Tensor tensor_on(const c10::Storage& storage, at::ScalarType dtype, std::int64_t start, at::IntArrayRef shape) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::computeDispatchKey(dtype, c10::kStrided, storage.device())),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape, row_major_strides(shape), start);
  return tensor;
}

}  // namespace

HollowStorage::HollowStorage(std::int64_t num_elements, at::ScalarType dtype, c10::Device device,
                             const std::string& why_empty)
    : num_bytes_(num_elements * static_cast<std::int64_t>(c10::elementSize(dtype))) {
  const c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<std::size_t>(num_bytes_), no_bytes(device), nullptr, false));
  row_ = tensor_on(storage, dtype, 0, {num_elements});
  explain(why_empty);
}

c10::StorageImpl& HollowStorage::impl() const { return *row_.storage().unsafeGetStorageImpl(); }

at::Tensor HollowStorage::view(std::int64_t start, at::IntArrayRef shape) const {
  return tensor_on(row_.storage(), row_.scalar_type(), start, shape);
}

bool HollowStorage::holds(const at::Tensor& tensor) const {
  // Tensor::is_alias_of() would look at the bytes.
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == row_.storage().unsafeGetStorageImpl();
}

void HollowStorage::give(c10::DataPtr bytes) {
  if (has_bytes_) throw InternalError("a storage was given bytes that had some");
  impl().clear_data_ptr_access_error_msg_();
  impl().set_data_ptr_noswap(std::move(bytes));
  has_bytes_ = true;
}

c10::DataPtr HollowStorage::take(const std::string& why_empty) {
  if (!has_bytes_) throw InternalError("bytes were taken from a storage that had none");
  has_bytes_ = false;
  c10::DataPtr bytes = impl().set_data_ptr(no_bytes(row_.device()));
  explain(why_empty);
  return bytes;
}

void HollowStorage::explain(const std::string& why_empty) {
  impl().release_data_and_set_meta_custom_data_ptr_error_msg_(why_empty);
}

}  // namespace tessera
