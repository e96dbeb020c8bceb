#include <tessera/core/error.h>
#include <tessera/fsdp/check_optimizer.h>
#include <tessera/intercept/random_draws.h>
#include <tessera/shard/reproducible.h>

#include <c10/core/StorageImpl.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fsdp/fsdp_state.h"
#include "fsdp/guards.h"

namespace tessera::fsdp {

void ShardLock::refuse(const std::string& why) {
  for (const at::Tensor& shard : shards_) {
    c10::StorageImpl& storage = *shard.storage().unsafeGetStorageImpl();
    // A shard whose bytes lie elsewhere throws as it is, and must go on to.
    if (!locked_.contains(&storage) && storage._mutable_data_ptr_no_checks().get() == nullptr) continue;
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
    locked_.insert(&storage);
  }
}

void ShardLock::allow() {
  for (c10::StorageImpl* const storage : std::exchange(locked_, {})) storage->clear_data_ptr_access_error_msg_();
}

std::string why_no_vector() {
  return "this optimizer computes with all parameters as one vector, as LBFGS does: its products would span the shards "
         "of all ranks, and each rank has its own only. Use one that works element by element (SGD, Adam, AdamW, "
         "Adagrad, RMSprop, tessera::optim::AdamW; one of your own after tessera::check_optimizer()), or "
         "ShardingStrategy::kNoShard";
}

class VectorGuard::UseListener : public intercept::Listener {
 public:
  UseListener(bool is_single, ShardLock& lock)
      : is_single_(is_single), lock_(lock), thread_(std::this_thread::get_id()) {}

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
    : listener_(std::make_shared<UseListener>(shards.size() + num_others == 1, lock)), watch_(shards, listener_) {}

void VectorGuard::trust_optimizer() { listener_->trust_optimizer(); }

RandomGuard::RandomGuard(int world_rank, std::function<void(const intercept::Use&)> on_whole_use)
    : world_rank_(world_rank), on_whole_use_(std::move(on_whole_use)) {}

void RandomGuard::raise() {
  if (refusal_) std::rethrow_exception(std::exchange(refusal_, nullptr));
}

void RandomGuard::on_use(const intercept::Use& use) {
  if (std::this_thread::get_id() == thread_) on_whole_use_(use);
}

void RandomGuard::on_operator(std::string_view operator_name) {
  // Check the thread first: the owner's thread may be writing the other members.
  if (std::this_thread::get_id() != thread_ || !is_active_ || refusal_) return;
  if (!intercept::draws_random_numbers(operator_name)) return;
  refusal_ = std::make_exception_ptr(refusal_of_random_operator(operator_name, world_rank_));
}

void ThreadGate::enter() {
  std::unique_lock lock(mutex_);
  const auto self = std::this_thread::get_id();
  // A thread that is inside may enter again: the change waits for it.
  may_enter_.wait(lock, [&] { return num_changes_ == 0 || inside_.contains(self); });
  ++inside_[self];
}

void ThreadGate::leave() {
  const std::lock_guard lock(mutex_);
  const auto found = inside_.find(std::this_thread::get_id());
  if (--found->second > 0) return;
  inside_.erase(found);
  may_change_.notify_one();
}

ThreadGate::Change::Change(ThreadGate& gate) : gate_(gate) {
  std::unique_lock lock(gate_.mutex_);
  ++gate_.num_changes_;  // from here on no thread enters; else one that computes all the time would block us for ever
  gate_.may_change_.wait(lock, [&] { return gate_.inside_.empty(); });
}

ThreadGate::Change::~Change() {
  const std::lock_guard lock(gate_.mutex_);
  if (--gate_.num_changes_ == 0) gate_.may_enter_.notify_all();
}

}  // namespace tessera::fsdp

namespace tessera {
namespace {

using Known = std::unordered_set<const c10::TensorImpl*>;

Known stepped_by(const torch::optim::Optimizer& optimizer) {
  Known known;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) known.insert(parameter.unsafeGetTensorImpl());
  }
  return known;
}

}  // namespace

void check_optimizer(const torch::optim::Optimizer& optimizer, const ShardedModel& sharded) {
  const fsdp::FsdpState& state = *sharded.state();
  const std::string here = " (rank " + std::to_string(state.parts().ranks().shards.world_rank()) + ")";
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) && state.parts().ranks().shards.size() > 1) {
    throw ConfigError(fsdp::why_no_vector() + here);
  }
  const Known stepped = stepped_by(optimizer);
  for (const auto& unit : state.parts().units()) {
    for (std::size_t i = 0; i < unit->parameters().size(); ++i) {
      if (!stepped.contains(unit->parameters()[i].unsafeGetTensorImpl())) continue;
      throw ConfigError("the optimizer was built on the model's own parameters: " + unit->layout().items()[i].name +
                        " is in shards" + here + ". Build it on sharded.parameters(), after fully_shard()");
    }
  }
  for (const auto& [name, parameter] : sharded.named_parameters()) {
    if (!parameter.requires_grad() || stepped.contains(parameter.unsafeGetTensorImpl())) continue;
    throw ConfigError("the optimizer does not step " + (name.empty() ? "the unit of the model itself" : name) + here +
                      ". Build it on all of sharded.parameters(), in groups as you like");
  }
  sharded.state()->trust_optimizer();
}

}  // namespace tessera
