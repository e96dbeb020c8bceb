#pragma once

#include <tessera/train/training_state.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace tessera::testing {

/// A checkpoint in memory: puts the slices of all ranks together, and hands out any others.
/// Thread-safety: add() from any thread; the rest when all ranks have added theirs.
class MemoryStep {
 public:
  explicit MemoryStep(std::int64_t step) { manifest_.step = step; }

  /// What one rank captured. Throws when it contradicts what another one has.
  void add(const RankState& state);
  /// Throws unless every element has come.
  StateSource source();

  bool has(const std::string& group, const std::string& name) const { return tensors_.contains({group, name}); }
  at::Tensor tensor(const std::string& group, const std::string& name) const {
    return tensors_.at({group, name}).whole;
  }
  std::map<std::string, ManifestValue>& values() { return manifest_.values; }
  void drop(const std::string& group, const std::string& name) { tensors_.erase({group, name}); }

 private:
  struct Stored {
    at::Tensor whole;
    at::Tensor came;
  };

  std::mutex mutex_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, Stored> tensors_;
};

}  // namespace tessera::testing
