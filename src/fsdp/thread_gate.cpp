#include "fsdp/thread_gate.h"

namespace tessera::fsdp {

void ThreadGate::enter() {
  std::unique_lock lock(mutex_);
  const auto self = std::this_thread::get_id();
  // Who is inside goes on: the change waits for it.
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
  ++gate_.num_changes_;  // from here on nobody enters, or who computes without end would never let us
  gate_.may_change_.wait(lock, [&] { return gate_.inside_.empty(); });
}

ThreadGate::Change::~Change() {
  const std::lock_guard lock(gate_.mutex_);
  if (--gate_.num_changes_ == 0) gate_.may_enter_.notify_all();
}

}  // namespace tessera::fsdp
