#include "fsdp/vector_guard.h"

#include <thread>

namespace tessera::fsdp {

std::string why_no_vector() {
  return "this optimizer computes with all parameters as one vector, as LBFGS does: its products would span the shards "
         "of all ranks, and each rank has its own only. Use one that works element by element (SGD, Adam, AdamW, "
         "Adagrad, RMSprop, tessera::optim::AdamW; one of your own after tessera::check_optimizer()), or "
         "ShardingStrategy::kNoShard";
}

class VectorGuard::Ear : public intercept::Listener {
 public:
  Ear(bool is_single, ShardLock& lock) : is_single_(is_single), lock_(lock), thread_(std::this_thread::get_id()) {}

  void on_use(const intercept::Use& use) override {
    if (use.operator_name() != "aten::view_as" || std::this_thread::get_id() != thread_) return;
    const at::Tensor& piece = use.input(0);
    const at::Tensor& gradient = use.tensor().grad();
    if (gradient.defined() && piece.is_alias_of(gradient)) return;
    const bool is_of_more = piece.has_storage() && piece.storage().nbytes() > piece.nbytes();
    if (is_of_more || (is_single_ && !is_trusted_)) lock_.refuse(why_no_vector());
  }
  void trust_optimizer() { is_trusted_ = true; }

 private:
  bool is_single_;
  bool is_trusted_ = false;
  ShardLock& lock_;
  std::thread::id thread_;
};

VectorGuard::VectorGuard(const std::vector<at::Tensor>& shards, std::size_t num_others, ShardLock& lock)
    : ear_(std::make_shared<Ear>(shards.size() + num_others == 1, lock)), watch_(shards, ear_) {}

void VectorGuard::trust_optimizer() { ear_->trust_optimizer(); }

}  // namespace tessera::fsdp
