#include <tessera/core/error.h>

#include <utility>

#include "data_parallel/synchroniser/synchronisation.h"
#include "data_parallel/synchroniser/update_rounds.h"

namespace tessera::data_parallel {
namespace {

RoundRules rules_of(const SynchroniserOptions& options) {
  switch (parse_synchronisation_mode(options.mode())) {
    case SynchronisationMode::kSynchronous:
      return {0, 0};
    case SynchronisationMode::kBoundedStaleness:
      return {static_cast<std::uint64_t>(options.max_staleness()), 0};
    default:
      return {std::nullopt, static_cast<std::size_t>(options.max_queued())};
  }
}

/// Every rank applies the same updates; see Note [Rounds] for where they come from.
class CommonUpdates : public Synchronisation {
 public:
  CommonUpdates(const Communicator& comm, FlatParameters parameters, RoundRules rules)
      : parameters_(std::move(parameters)), rounds_(comm, parameters_, rules) {}

  void step(torch::optim::Optimizer& optimizer) override {
    FlatBuffers gradient = rounds_.take_buffers();
    parameters_.read_gradients(gradient);
    rounds_.contribute(std::move(gradient));
    apply_updates(optimizer);
  }

  void finish(torch::optim::Optimizer& optimizer) override {
    rounds_.finish();
    apply_updates(optimizer);
  }

  std::uint64_t version() const override { return rounds_.version(); }
  StalenessHistogram staleness() const override { return rounds_.staleness(); }

 private:
  void apply_updates(torch::optim::Optimizer& optimizer) {
    if (lost_update_) throw ConfigError("an update was lost to an error before: the weights differ from other ranks'");
    while (auto update = rounds_.next_update()) {
      parameters_.write_gradients(*update);
      lost_update_ = true;
      if (before_update) before_update(rounds_.version());
      optimizer.step();
      lost_update_ = false;
      rounds_.applied(std::move(*update));
    }
  }

  FlatParameters parameters_;
  UpdateRounds rounds_;
  bool lost_update_ = false;  // by an exception of the optimizer or of the user's callback
};

}  // namespace

std::unique_ptr<Synchronisation> make_common_updates(const Communicator& comm, FlatParameters parameters,
                                                     const SynchroniserOptions& options) {
  return std::make_unique<CommonUpdates>(comm, std::move(parameters), rules_of(options));
}

}  // namespace tessera::data_parallel
