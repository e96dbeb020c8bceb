#pragma once

#include <tessera/data_parallel/synchroniser.h>

#include <torch/optim/optimizer.h>

#include <memory>

#include "data_parallel/flat_parameters.h"

namespace tessera::data_parallel {

/// One mode of a Synchroniser, with the same contract.
class Synchronisation {
 public:
  virtual ~Synchronisation() = default;

  virtual void step(torch::optim::Optimizer& optimizer) = 0;
  virtual void finish(torch::optim::Optimizer& optimizer) = 0;
  virtual std::uint64_t version() const = 0;
  virtual StalenessHistogram staleness() const = 0;

  std::function<void(std::uint64_t)> before_update;
};

/// Requires: nobody else uses `comm`, and the parameters are the same on all ranks.
std::unique_ptr<Synchronisation> make_equal_updates(const Communicator& comm, FlatParameters parameters,
                                                    const SynchroniserOptions& options);
std::unique_ptr<Synchronisation> make_local_sgd(const Communicator& comm, FlatParameters parameters,
                                                const SynchroniserOptions& options);

}  // namespace tessera::data_parallel
