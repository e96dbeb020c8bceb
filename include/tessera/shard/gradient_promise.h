#pragma once

#include <tessera/shard/named_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::shard {

/// Which parameters of a model still get gradients, while those are promised (PromisedGradients). What whoever shares
/// the model does at each of its calls is its own.
class GradientPromise {
 public:
  /// `parameters`: those that a program may name. `trained`: what an optimizer has.
  GradientPromise(NamedTensors parameters, std::vector<at::Tensor> trained, int rank);
  ~GradientPromise();
  GradientPromise(const GradientPromise&) = delete;
  GradientPromise& operator=(const GradientPromise&) = delete;

  /// These have all their gradients. Returns their places in the list, in the order in which they are named, without
  /// those that require none or were named before. Throws ConfigError for a tensor that is no parameter.
  std::vector<std::size_t> complete(const std::vector<at::Tensor>& parameters);
  /// The same of those that nobody has named yet.
  std::vector<std::size_t> complete_rest();
  bool is_complete(const at::Tensor& parameter) const;

  /// A gradient of this one comes. Throws ConfigError when it has them all.
  void require_open(const at::Tensor& parameter) const;
  /// Throws ConfigError when somebody has written to a parameter or has cleared gradients that are complete, and when a
  /// pass has failed.
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

/// Throws ConfigError: this model cannot have its gradients promised.
[[noreturn]] void refuse_promise(const std::string& why, int rank);
/// The same in reproducible mode, and when they are promised already.
void require_promise_possible(bool is_reproducible, bool is_promised, int rank);
/// Throws ConfigError: `what`, a call of the PromisedGradients, was made inside a backward pass.
[[noreturn]] void refuse_promise_in_backward(const std::string& what, int rank);
/// For `what`, which looks at the gradients of these. Throws ConfigError while they are promised.
void require_no_promise(const std::vector<at::Tensor>& trained, const std::string& what);

}  // namespace tessera::shard
