#include <tessera/shard/trained_memory.h>

#include <c10/core/StorageImpl.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace tessera::shard {
namespace {

/// By storage: slices of a shard are in its storage too. Ranks that are threads use the same table.
struct TrainedMemories {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<TrainedMemory>> all;

  static TrainedMemories& of_process() {
    static auto* const memories = new TrainedMemories;  // never destroyed: models may outlive statics
    return *memories;
  }
};

}  // namespace

TrainedMemoryNote::TrainedMemoryNote(const at::Tensor& kept, std::weak_ptr<TrainedMemory> memory) : kept_(kept) {
  TrainedMemories& memories = TrainedMemories::of_process();
  const std::lock_guard lock(memories.mutex);
  memories.all[kept_.storage().unsafeGetStorageImpl()] = std::move(memory);
}

TrainedMemoryNote::~TrainedMemoryNote() {
  TrainedMemories& memories = TrainedMemories::of_process();
  const std::lock_guard lock(memories.mutex);
  memories.all.erase(kept_.storage().unsafeGetStorageImpl());
}

std::shared_ptr<TrainedMemory> trained_memory_of(const at::Tensor& trained) {
  if (!trained.has_storage()) return nullptr;
  TrainedMemories& memories = TrainedMemories::of_process();
  const std::lock_guard lock(memories.mutex);
  const auto found = memories.all.find(trained.storage().unsafeGetStorageImpl());
  return found == memories.all.end() ? nullptr : found->second.lock();
}

bool has_no_bytes(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
}

at::Tensor readable(const at::Tensor& tensor) {
  if (!has_no_bytes(tensor)) return tensor;
  const auto memory = trained_memory_of(tensor);
  return memory ? memory->read(tensor) : tensor;
}

}  // namespace tessera::shard
