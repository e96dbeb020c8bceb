#pragma once

#include <tessera/comm/world.h>
#include <tessera/data_parallel/synchroniser.h>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tessera::testing {

inline constexpr double kRate = 0.1;

/// A training of one vector whose gradients follow from a formula, so that any order of updates can be redone by hand.
struct Drill {
  at::Tensor weights = at::linspace(-1, 1, 5, at::kDouble).requires_grad_(true);
  torch::optim::SGD optimizer;

  explicit Drill(double momentum = 0) : optimizer({weights}, torch::optim::SGDOptions(kRate).momentum(momentum)) {}

  /// Where rank `rank` wants to go in its step `step`.
  static at::Tensor target(int rank, int step) {
    return (at::arange(5, at::kDouble) + 1.0 + 3.0 * rank + std::sqrt(2.0) * step).sin();
  }

  /// Of half the squared distance to the target.
  at::Tensor gradient(int rank, int step) const { return weights.detach() - target(rank, step); }

  void step(Synchroniser& sync, int rank, int step) {
    weights.mutable_grad() = gradient(rank, step);
    sync.step(optimizer);
  }
};

inline SynchroniserOptions bounded(std::int64_t max_staleness) {
  return SynchroniserOptions().mode("bounded_staleness").max_staleness(max_staleness);
}

inline SynchroniserOptions asynchronous() { return SynchroniserOptions().mode("asynchronous"); }

/// The modes in which all ranks apply the same updates.
inline std::vector<SynchroniserOptions> modes_of_common_updates() {
  return {SynchroniserOptions(), bounded(0), bounded(1), bounded(4), asynchronous()};
}

inline std::string text_of(const SynchroniserOptions& options) {
  return options.mode() + (options.mode() == "bounded_staleness" ? " " + std::to_string(options.max_staleness()) : "");
}

/// Expects the same bits and the same version on every rank. Collective.
inline void expect_same_everywhere(const World& world, const Synchroniser& sync, const at::Tensor& weights,
                                   const std::string& what) {
  const at::Tensor all = world.comm().all_gather(weights.detach().reshape({1, -1}));
  const auto own = static_cast<std::int64_t>(sync.version());
  const at::Tensor versions = world.comm().all_gather(at::full({1}, own, at::kLong));
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_TRUE(at::equal(all[rank], weights.detach().reshape({-1}))) << what << ": rank " << rank << " differs";
    EXPECT_EQ(versions[rank].item<std::int64_t>(), own) << what << ": rank " << rank;
  }
}

}  // namespace tessera::testing
