#include <ATen/ATen.h>

#include <utility>

#include "data_parallel/synchroniser/synchronisation.h"

namespace tessera::data_parallel {
namespace {

/// The optimizer's own state is not averaged: that of a momentum stays each rank's.
class LocalSgd : public Synchronisation {
 public:
  LocalSgd(const Communicator& comm, FlatParameters parameters, std::uint64_t period)
      : comm_(comm), parameters_(std::move(parameters)), period_(period), buffers_(parameters_.make_buffers(comm)) {
    unfinished_ = comm_.empty({1}, at::TensorOptions().dtype(at::kLong).device(buffers_.front().device()));
  }

  void step(torch::optim::Optimizer& optimizer) override {
    if (before_update) before_update(num_steps_);
    optimizer.step();
    if (++num_steps_ % period_ == 0) average(false);
  }

  void finish(torch::optim::Optimizer& /*optimizer*/) override {
    // The averages that ranks with more steps still ask for need every rank.
    while (average(true)) {
    }
  }

  std::uint64_t version() const override { return num_averages_; }
  StalenessHistogram staleness() const override { return {}; }

 private:
  /// Whether a rank goes on.
  bool average(bool finished) {
    unfinished_.fill_(finished ? 0 : 1);
    comm_.all_reduce(unfinished_, ReduceOp::kMax);
    parameters_.read_values(buffers_);
    for (auto& buffer : buffers_) comm_.all_reduce(buffer, ReduceOp::kAvg);
    parameters_.write_values(buffers_);
    ++num_averages_;
    return unfinished_.item<std::int64_t>() != 0;
  }

  Communicator comm_;
  FlatParameters parameters_;
  std::uint64_t period_;
  FlatBuffers buffers_;
  at::Tensor unfinished_;
  std::uint64_t num_steps_ = 0;
  std::uint64_t num_averages_ = 0;
};

}  // namespace

std::unique_ptr<Synchronisation> make_local_sgd(const Communicator& comm, FlatParameters parameters,
                                                const SynchroniserOptions& options) {
  return std::make_unique<LocalSgd>(comm, std::move(parameters), static_cast<std::uint64_t>(options.period()));
}

}  // namespace tessera::data_parallel
