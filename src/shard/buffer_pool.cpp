#include <tessera/core/error.h>
#include <tessera/shard/buffer_pool.h>
#include <tessera/shard/hollow_storage.h>
#include <tessera/shard/stream_order.h>

#include <ATen/ATen.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace tessera {

std::shared_ptr<void> host_pages(std::size_t num_bytes) {
  void* pages = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw StorageError("no " + std::to_string(num_bytes) +
                       " bytes of memory to gather parameters into: use smaller units, or more ranks");
  }
  return {pages, [num_bytes](void* memory) { munmap(memory, num_bytes); }};
}

struct BufferPool::State {
  std::mutex mutex;                                        // guards all that follows
  std::multimap<std::size_t, std::shared_ptr<void>> free;  // by size
  std::size_t lent_bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t held_bytes = 0;
  OnChange on_change;
  bool keeps = true;  // returned buffers, for the next borrower

  /// A free buffer, or null.
  std::shared_ptr<void> take(std::size_t size) {
    const std::lock_guard lock(mutex);
    auto kept = free.extract(size);
    return kept.empty() ? nullptr : std::move(kept.mapped());
  }
  void count_lent(std::size_t num_bytes, std::size_t new_bytes) {
    const std::lock_guard lock(mutex);
    count(static_cast<std::int64_t>(num_bytes), static_cast<std::int64_t>(new_bytes));
  }
  void give_back(std::shared_ptr<void> buffer, std::size_t size, std::size_t num_bytes) {
    const std::lock_guard lock(mutex);
    count(-static_cast<std::int64_t>(num_bytes), keeps ? 0 : -static_cast<std::int64_t>(size));
    if (keeps) free.emplace(size, std::move(buffer));
  }
  std::size_t read(std::size_t State::* figure) {
    const std::lock_guard lock(mutex);
    return this->*figure;
  }

 private:
  void count(std::int64_t lent_change, std::int64_t held_change) {
    lent_bytes += static_cast<std::size_t>(lent_change);
    held_bytes += static_cast<std::size_t>(held_change);
    peak_bytes = std::max(peak_bytes, lent_bytes);
    if (on_change) on_change(lent_change, held_change - lent_change);
  }
};

BufferPool::BufferPool(AllocateBytes allocate, std::size_t buffer_bytes, c10::Device device)
    : allocate_(std::move(allocate)), buffer_bytes_(buffer_bytes), device_(device), state_(std::make_shared<State>()) {}

BufferPool BufferPool::that_keeps_nothing(AllocateBytes allocate, c10::Device device) {
  BufferPool pool(std::move(allocate), 0, device);
  pool.state_->keeps = false;
  return pool;
}

c10::DataPtr BufferPool::lend(std::size_t num_bytes) {
  struct Loan {
    std::shared_ptr<State> pool;
    std::shared_ptr<void> buffer;
    std::size_t buffer_bytes;
    std::size_t num_bytes;
    std::optional<c10::Stream> stream;
  };
  const std::size_t size = std::max<std::size_t>(buffer_bytes_ > 0 ? buffer_bytes_ : num_bytes, 1);
  if (num_bytes > size) throw InternalError("a unit is larger than the buffers for units");
  std::shared_ptr<void> buffer = state_->take(size);
  const bool is_new = !buffer;
  if (is_new) buffer = allocate_(size);
  state_->count_lent(num_bytes, is_new ? size : 0);
  void* const bytes = buffer.get();
  auto loan = std::make_unique<Loan>(Loan{state_, std::move(buffer), size, num_bytes, current_stream(device_)});
  const auto give_back = [](void* context) {
    const std::unique_ptr<Loan> ended(static_cast<Loan*>(context));
    try {
      // See Note [Memory that is lent on a device].
      if (ended->stream) order_streams(*current_stream(ended->stream->device()), *ended->stream);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a device that failed tells the next call
    }
    ended->pool->give_back(std::move(ended->buffer), ended->buffer_bytes, ended->num_bytes);
  };
  return {bytes, loan.release(), give_back, device_};
}

std::size_t BufferPool::lent_bytes() const { return state_->read(&State::lent_bytes); }
std::size_t BufferPool::peak_bytes() const { return state_->read(&State::peak_bytes); }
std::size_t BufferPool::held_bytes() const { return state_->read(&State::held_bytes); }

void BufferPool::observe(OnChange on_change) {
  const std::lock_guard lock(state_->mutex);
  state_->on_change = std::move(on_change);
}

namespace {

c10::DataPtr no_bytes(c10::Device device) { return {nullptr, device}; }

std::vector<std::int64_t> row_major_strides(at::IntArrayRef shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  return strides;
}

/// Made by hand: `set_` reads the data pointer, which may be absent, and operators would make views that autograd
/// tracks.
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
  flat_ = tensor_on(storage, dtype, 0, {num_elements});
  explain(why_empty);
}

c10::StorageImpl& HollowStorage::impl() const { return *flat_.storage().unsafeGetStorageImpl(); }

at::Tensor HollowStorage::view(std::int64_t start, at::IntArrayRef shape) const {
  return tensor_on(flat_.storage(), flat_.scalar_type(), start, shape);
}

bool HollowStorage::holds(const at::Tensor& tensor) const {
  // Tensor::is_alias_of() would read the data pointer.
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == flat_.storage().unsafeGetStorageImpl();
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
  c10::DataPtr bytes = impl().set_data_ptr(no_bytes(flat_.device()));
  explain(why_empty);
  return bytes;
}

void HollowStorage::explain(const std::string& why_empty) {
  impl().release_data_and_set_meta_custom_data_ptr_error_msg_(why_empty);
}

}  // namespace tessera
