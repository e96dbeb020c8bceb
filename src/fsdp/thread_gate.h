#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace tessera::fsdp {

/// Lets threads that do not train compute with a sharded model: while their operators run, no bytes come to its
/// parameters and none go. What is whole they find whole, what is in shards gives them an error, nothing is in between.
/// Thread-safety: enter() and leave() from any thread; Change from the one that trains.
class ThreadGate {
 public:
  /// Around an operator. Blocks: as long as a Change is under way. Operators are nested.
  void enter();
  void leave();

  /// Bytes come or go as long as it lives. Blocks: until the operators of the others have ended. Changes nest.
  class Change {
   public:
    explicit Change(ThreadGate& gate);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    ThreadGate& gate_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable may_enter_;
  std::condition_variable may_change_;
  std::map<std::thread::id, int> inside_;  // how many nested operators
  int num_changes_ = 0;
};

}  // namespace tessera::fsdp
