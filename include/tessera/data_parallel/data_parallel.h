#pragma once

#include <tessera/comm/world.h>

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tessera {

struct DataParallelOptions {
  /// One replica on each. Empty: all accelerators, or the CPU when there is none.
  TORCH_ARG(std::vector<at::Device>, devices) = {};
  /// 0: as many as there are devices; on the CPU 2.
  TORCH_ARG(std::int64_t, num_replicas) = 0;
  /// Only on the CPU: the threads with which each replica computes an operator.
  TORCH_ARG(std::int64_t, threads_per_replica) = 1;
  /// The dimension along which inputs are cut and outputs are joined.
  TORCH_ARG(std::int64_t, dim) = 0;
};

namespace data_parallel {

/// The replicas of a module with their threads: the part of DataParallel that does not depend on the model's type.
class Replicas {
 public:
  /// The forward of one replica on its pieces of the inputs.
  using Forward = std::function<at::Tensor(std::size_t replica, const std::vector<at::Tensor>& inputs)>;
  using Train = std::function<void(torch::nn::Module& replica, World world)>;

  Replicas(const std::shared_ptr<torch::nn::Module>& model, const DataParallelOptions& options);

  const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const;
  const std::vector<at::Device>& devices() const;
  at::Tensor forward(const std::vector<at::Tensor>& inputs, const Forward& forward_one) const;
  void train(const Train& body) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace data_parallel

/// Several replicas of a model in one process, each on its own device (or its own cores) with its own thread. A batch
/// is cut into a piece for each; forward and backward run on all of them at the same time. The replicas live as long
/// as the object: nothing is cloned for a step.
///
///   DataParallel<NetImpl> parallel(net);
///   loss_of(parallel.forward(input), target).backward();   // net's parameters have the gradients of the whole batch
///   optimizer.step();                                      // made with net's parameters
///
/// Replica 0 is the model itself. Replicas on its device share the memory of its parameters; to other devices the
/// parameters are copied when they have changed. Buffers are copied from replica 0 before each forward, so changes that
/// the other replicas make to their buffers are lost: BatchNorm's running statistics are those of replica 0's pieces.
/// Requires: a model that `clone()` can copy (torch::nn::Cloneable), whose `forward` takes and returns tensors.
/// Thread-safety: one thread at a time.
template <std::derived_from<torch::nn::Module> Model>
class DataParallel {
 public:
  /// Throws ConfigError for a model that cannot be cloned, for one that lies on another device than the first, and for
  /// options that contradict each other.
  explicit DataParallel(const std::shared_ptr<Model>& model, const DataParallelOptions& options = {})
      : replicas_(model, options) {
    for (const auto& module : replicas_.modules()) models_.push_back(std::dynamic_pointer_cast<Model>(module));
  }

  /// As above for the holders that TORCH_MODULE makes.
  template <class Holder>
    requires requires(const Holder& holder) {
      { holder.ptr() } -> std::convertible_to<std::shared_ptr<Model>>;
    }
  explicit DataParallel(const Holder& model, const DataParallelOptions& options = {})
      : DataParallel(std::shared_ptr<Model>(model.ptr()), options) {}

  /// The model's output for the whole batch. All inputs are cut along `dim`, as at::tensor_split does; if a batch has
  /// fewer rows than there are replicas, some replicas get nothing. Gradients of gradients are not computed.
  /// Blocks: until all replicas are done. Throws Error naming the replica whose forward failed; the replica's exception
  /// is nested in it. Backward does the same.
  template <std::convertible_to<at::Tensor>... Inputs>
    requires(sizeof...(Inputs) > 0)
  at::Tensor forward(const Inputs&... inputs) const {
    return forward_pieces({at::Tensor(inputs)...}, std::index_sequence_for<Inputs...>());
  }

  /// For other ways to keep replicas together (`distribute` with a hook, local steps, ...): runs `body` for each
  /// replica as a rank of a world of threads. Each replica has parameters of its own, equal at the start; rank 0's are
  /// the model's. When all have returned, the model's parameters are the average over the replicas; if `body` ends with
  /// a synchronisation, that is the value that every replica holds. Buffers are rank 0's.
  /// Blocks: until all have returned. Rethrows the exception of the first rank that failed; the parameters are then
  /// rank 0's.
  void train_replicas(const std::function<void(Model& replica, World world)>& body) const {
    replicas_.train(
        [&body](torch::nn::Module& replica, World world) { body(dynamic_cast<Model&>(replica), std::move(world)); });
  }

  std::size_t num_replicas() const { return models_.size(); }
  const std::vector<at::Device>& devices() const { return replicas_.devices(); }
  /// Number 0 is the model itself.
  const std::shared_ptr<Model>& replica(std::size_t index) const { return models_.at(index); }

 private:
  template <std::size_t... kIndex>
  at::Tensor forward_pieces(const std::vector<at::Tensor>& inputs, std::index_sequence<kIndex...> /*inputs*/) const {
    return replicas_.forward(inputs, [this](std::size_t replica, const std::vector<at::Tensor>& pieces) {
      return models_[replica]->forward(pieces[kIndex]...);
    });
  }

  data_parallel::Replicas replicas_;
  std::vector<std::shared_ptr<Model>> models_;
};

}  // namespace tessera
