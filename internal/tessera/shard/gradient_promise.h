#pragma once

#include <tessera/shard/named_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::shard {

/// Which parameters of a model still get gradients, while gradients are promised (PromisedGradients). Only the
/// bookkeeping: the ModelState that owns it averages the gradients.
class GradientPromise {
 public:
  /// `parameters`: those that a program may name. `trained`: the tensors that an optimizer steps.
  GradientPromise(NamedTensors parameters, std::vector<at::Tensor> trained, int rank);
  ~GradientPromise();
  GradientPromise(const GradientPromise&) = delete;
  GradientPromise& operator=(const GradientPromise&) = delete;

  /// The gradients of these parameters are complete. Returns their indices in the list, in the order in which they are
  /// named, without those that require no gradient or were named before. Throws ConfigError for a tensor that is no
  /// parameter.
  std::vector<std::size_t> complete(const std::vector<at::Tensor>& parameters);
  /// The same for the parameters that were not named yet.
  std::vector<std::size_t> complete_rest();
  bool is_complete(const at::Tensor& parameter) const;

  /// Called when a gradient of this parameter arrives. Throws ConfigError when the parameter was complete.
  void require_open(const at::Tensor& parameter) const;
  /// Throws ConfigError when a parameter was written to, when gradients were cleared that are complete, and when a pass
  /// has failed.
  void require_kept() const;
  [[noreturn]] void refuse_write() const;
  /// An exception has ended a pass; an operator writes to a parameter.
  void note_failure() { has_failed_ = true; }
  void note_write() { was_written_ = true; }

 private:
  std::size_t index_of(const at::Tensor& parameter) const;

  NamedTensors parameters_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
  std::vector<bool> is_complete_;
  std::vector<bool> had_gradient_;  // when it was complete
  std::vector<at::Tensor> trained_;
  int rank_;
  bool has_failed_ = false;
  bool was_written_ = false;
};

/// Throws ConfigError: the gradients of this model cannot be promised.
[[noreturn]] void refuse_promise(const std::string& why, int rank);
/// The same in reproducible mode, and when they are promised already.
void require_promise_possible(bool is_reproducible, bool is_promised, int rank);
/// Throws ConfigError: `what`, a call of the PromisedGradients, was made inside a backward pass.
[[noreturn]] void refuse_promise_in_backward(const std::string& what, int rank);
/// For a function `what` that reads the gradients of these tensors. Throws ConfigError while they are promised.
void require_no_promise(const std::vector<at::Tensor>& trained, const std::string& what);

}  // namespace tessera::shard
