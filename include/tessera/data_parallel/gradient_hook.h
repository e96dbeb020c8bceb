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
  std::vector<at::Tensor> gradients;   ///< views of `flat`, each of its parameter's shape; if that is complex, with a
                                       ///< last dimension more: the real and the imaginary part
  std::vector<at::Tensor> parameters;  ///< in the same order
  int divisor = 1;                     ///< what the sum over the ranks is divided by: their number, as a rule
};

/// What a hook remembers of one bucket from step to step, on one rank.
struct BucketMemory {
  std::vector<at::Tensor> parameters;         ///< of the bucket, in its order
  std::map<std::string, at::Tensor> tensors;  ///< by names of the hook's own
};

/// How gradients travel between ranks. Derive from it to write one's own: docs/guides/gradient_hooks.md.
/// One object serves one model on one rank, and may keep state from step to step.
class GradientHook {
 public:
  /// Waits for what was started and returns the averaged gradients: `bucket.flat` itself, or another tensor of its
  /// length and dtype.
  using Finish = std::function<at::Tensor()>;

  virtual ~GradientHook() = default;

  /// For messages: "fp16".
  virtual std::string name() const = 0;

  /// Starts to reduce the bucket and returns how to finish. Backward is still computing other gradients: start
  /// asynchronous calls and do not wait. All ranks call it for the same buckets in the same order, and then each
  /// returned function, in that order, when backward is done. The bucket's tensors stay valid until then; the object
  /// itself does not.
  virtual Finish start(const GradientBucket& bucket, const Communicator& comm) = 0;

  /// Whether gradients should come divided already, with `bucket.divisor` 1, where that can be done while they are
  /// copied into the bucket and so costs nothing. Dividing the sum later takes a pass of its own.
  virtual bool takes_divided(const Communicator& /*comm*/) const { return false; }

  /// Whether it remembers something from step to step.
  virtual bool keeps_state() const { return false; }
  /// For checkpoints: adds what it remembers of each bucket to `buckets`, which come in their order with their
  /// parameters. The tensors may share its memory. False when it has nothing for checkpoints: a run that goes on then
  /// begins without, and says so.
  virtual bool save_memory(std::vector<BucketMemory>& /*buckets*/) const { return false; }
  /// Between steps: remembers what was saved on this rank, and nothing else; with no buckets, nothing. Returns why it
  /// cannot, which leaves it with nothing, or "".
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
