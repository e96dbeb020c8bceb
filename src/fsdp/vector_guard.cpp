#include "fsdp/vector_guard.h"

#include <c10/core/StorageImpl.h>

#include <string_view>
#include <thread>
#include <utility>

namespace tessera::fsdp {

std::string why_no_vector() {
  return "this optimizer computes with all parameters as one vector, as LBFGS does: its products would span the shards "
         "of all ranks, and each rank has its own only. Use one that works element by element (SGD, Adam, AdamW, "
         "Adagrad, RMSprop, tessera::optim::AdamW), or ShardingStrategy::kNoShard";
}

class VectorGuard::Ear : public intercept::Listener {
 public:
  explicit Ear(std::vector<at::Tensor> shards) : shards_(std::move(shards)), thread_(std::this_thread::get_id()) {}

  void on_use(const at::Tensor& /*tensor*/, std::string_view operator_name) override {
    if (operator_name != "aten::view_as" || std::this_thread::get_id() != thread_) return;
    // What a listener throws is swallowed; the operator that would write says it instead.
    refuses_ = true;
    for (const at::Tensor& shard : shards_) {
      shard.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(why_no_vector());
    }
  }
  void allow() {
    if (!std::exchange(refuses_, false)) return;
    for (const at::Tensor& shard : shards_) {
      shard.storage().unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
    }
  }

 private:
  std::vector<at::Tensor> shards_;
  std::thread::id thread_;
  bool refuses_ = false;
};

VectorGuard::VectorGuard(const std::vector<at::Tensor>& shards)
    : ear_(std::make_shared<Ear>(shards)), watch_(shards, ear_) {}

void VectorGuard::allow() { ear_->allow(); }

}  // namespace tessera::fsdp
