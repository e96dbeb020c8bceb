#include "fsdp/shard_lock.h"

#include <c10/core/StorageImpl.h>

#include <utility>

namespace tessera::fsdp {

void ShardLock::refuse(const std::string& why) {
  refuses_ = true;
  for (const at::Tensor& shard : shards_) {
    shard.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why);
  }
}

void ShardLock::allow() {
  if (!std::exchange(refuses_, false)) return;
  for (const at::Tensor& shard : shards_) {
    shard.storage().unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
  }
}

}  // namespace tessera::fsdp
