#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

namespace tessera::recompute {

/// Calls a function once more, with these tensors in the places of its inputs. What it returns is dropped.
using RunAgain = std::function<void(const std::vector<at::Tensor>&)>;

/// False where autograd saves nothing anyway, as under NoGradGuard.
bool is_wanted();

/// While one lives, what autograd saves on this thread is dropped, to be computed again by `run_again` when backward
/// asks for it. What checkpoint() is made of.
/// Thread-safety: made and ended by one thread.
class FirstRun {
 public:
  FirstRun(std::vector<at::Tensor> inputs, RunAgain run_again);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

  /// The function has returned. Throws ConfigError if it changed an input in place.
  void complete();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::recompute
