#pragma once

#include <tessera/comm/communicator.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera {

namespace data_parallel {
class HookAdapter;
}  // namespace data_parallel

/// Some of a model's gradients, complete on this rank, one after another in one tensor.
struct GradientBucket {
  std::size_t index = 0;               ///< the same on all ranks; buckets are reduced in this order
  at::Tensor flat;                     ///< all gradients of the bucket, one-dimensional
  std::vector<at::Tensor> gradients;   ///< views of `flat`, each of its parameter's shape; for a complex parameter with
                                       ///< one more dimension at the end: the real and the imaginary part
  std::vector<at::Tensor> parameters;  ///< in the same order
  int divisor = 1;                     ///< what the sum over the ranks is divided by: their number, as a rule
};

/// What a hook remembers of one bucket from step to step, on one rank.
struct BucketMemory {
  std::vector<at::Tensor> parameters;         ///< of the bucket, in its order
  std::map<std::string, at::Tensor> tensors;  ///< by names that the hook chooses
};

/// How gradients travel between ranks. Derive from it to write your own hook: docs/guides/gradient_hooks.md.
/// One object serves one model on one rank, and may keep state from step to step.
class GradientHook {
 public:
  /// Waits for the calls that start() began and returns the averaged gradients: `bucket.flat` itself, or another tensor
  /// of its length and dtype.
  using Finish = std::function<at::Tensor()>;

  virtual ~GradientHook() = default;

  /// For messages: "fp16".
  virtual std::string name() const = 0;

  /// Starts to reduce the bucket and returns a function that finishes it. Backward is still computing other gradients:
  /// start asynchronous calls and do not wait. All ranks call start() for the same buckets in the same order; when
  /// backward is done, they call the returned functions in that order. The bucket's tensors stay valid until then; the
  /// GradientBucket itself does not.
  virtual Finish start(const GradientBucket& bucket, const Communicator& comm) = 0;

  /// Whether the gradients in the bucket should be divided already, with `bucket.divisor` 1. The division costs nothing
  /// when it is done while gradients are copied into the bucket; dividing the sum later takes a pass of its own.
  virtual bool takes_divided(const Communicator& /*comm*/) const { return false; }

  /// Whether it remembers something from step to step.
  virtual bool keeps_state() const { return false; }
  /// For checkpoints: adds the state of each bucket to `buckets`, which holds the buckets in order, with their
  /// parameters. The tensors may share memory with the hook. Returns false when the hook saves nothing: a run that
  /// resumes then begins without the state, and says so.
  virtual bool save_memory(std::vector<BucketMemory>& /*buckets*/) const { return false; }
  /// Called between steps: replaces the hook's state by the one that was saved on this rank; with no buckets, clears
  /// it. Returns "", or the reason for which it cannot; then the state is cleared.
  virtual std::string load_memory(const std::vector<BucketMemory>& /*buckets*/) { return ""; }

  /// The bytes of gradients that this rank has handed to the communicator so far.
  std::uint64_t num_bytes() const { return num_bytes_; }

 protected:
  void count(const at::Tensor& sent) { num_bytes_ += sent.nbytes(); }

 private:
  friend class data_parallel::HookAdapter;

  std::uint64_t num_bytes_ = 0;
  std::atomic<bool> taken_ = false;
};

}  // namespace tessera
