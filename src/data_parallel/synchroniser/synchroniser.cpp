#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>
#include <tessera/shard/state_broadcast.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "data_parallel/synchroniser/synchronisation.h"
#include "data_parallel/synchroniser/update_rounds.h"

namespace tessera::data_parallel {
namespace {

/// The optimizer's own state is not averaged: each rank keeps its own momentum, for example.
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
    // Every rank must take part in the averages of ranks that make more steps.
    while (average(true)) {
    }
  }

  std::uint64_t version() const override { return num_averages_; }
  StalenessHistogram staleness() const override { return {}; }

 private:
  /// Returns whether some rank is not finished.
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
class EqualUpdates : public Synchronisation {
 public:
  EqualUpdates(const Communicator& comm, FlatParameters parameters, RoundRules rules)
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

std::unique_ptr<Synchronisation> make_equal_updates(const Communicator& comm, FlatParameters parameters,
                                                    const SynchroniserOptions& options) {
  return std::make_unique<EqualUpdates>(comm, std::move(parameters), rules_of(options));
}

}  // namespace tessera::data_parallel

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"synchronous", "bounded_staleness", "asynchronous", "local_sgd"};

}  // namespace

SynchronisationMode parse_synchronisation_mode(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames.at(i) == name) return static_cast<SynchronisationMode>(i);
  }
  throw ConfigError("there is no synchronisation mode \"" + std::string(name) +
                    "\"; give synchronous, bounded_staleness, asynchronous or local_sgd");
}

std::string_view to_string(SynchronisationMode mode) { return kNames.at(static_cast<std::size_t>(mode)); }

const FieldList<SynchroniserOptions>& SynchroniserOptions::fields() {
  static const FieldList<SynchroniserOptions> list =
      FieldList<SynchroniserOptions>("synchroniser")
          .add_choice("mode", &SynchroniserOptions::mode_, {kNames.begin(), kNames.end()},
                      "When the ranks' gradients meet.")
          .add("max_staleness", &SynchroniserOptions::max_staleness_,
               "With bounded_staleness: the most updates that a gradient may be behind.")
          .add("period", &SynchroniserOptions::period_, "With local_sgd: steps of a rank between two averagings.")
          .add("max_queued", &SynchroniserOptions::max_queued_,
               "With asynchronous: updates that may wait on a rank until its next step.");
  return list;
}

namespace {

using data_parallel::FlatParameters;

void check(const SynchroniserOptions& options) {
  SynchroniserOptions::fields().check(options);
  const auto refuse = [](const std::string& name, const std::string& least, std::int64_t found) {
    throw ConfigError("synchroniser." + name + " must be at least " + least + ", found " + std::to_string(found));
  };
  if (options.max_staleness() < 0) refuse("max_staleness", "0", options.max_staleness());
  if (options.period() < 1) refuse("period", "1", options.period());
  if (options.max_queued() < 1) refuse("max_queued", "1", options.max_queued());
}

/// Without duplicates: a model that ties weights lists them twice.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> unique;
  for (const auto& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) unique.push_back(parameter);
  }
  return unique;
}

/// A hash of which parameters are trained, by position, since two parameters may have the same shape.
std::int64_t fingerprint_of_flags(const std::vector<at::Tensor>& parameters) {
  Digest all;
  for (const auto& parameter : parameters) all.add(std::uint64_t{parameter.requires_grad() ? 1U : 2U});
  return all.positive();
}

/// Compares all that must be the same on every rank, in one call.
void check_agreement(const Communicator& comm, const FlatParameters& all, const SynchroniserOptions& options) {
  const std::vector<std::pair<std::string, std::int64_t>> facts = {
      {"the mode", static_cast<std::int64_t>(parse_synchronisation_mode(options.mode()))},
      {"max_staleness", options.max_staleness()},
      {"period", options.period()},
      {"max_queued", options.max_queued()},
      {"the number of parameters' elements", all.num_elements()},
      {"the parameters' shapes or types", all.fingerprint()},
      {"which parameters require a gradient", fingerprint_of_flags(all.parameters())},
  };
  at::Tensor numbers = at::empty({static_cast<std::int64_t>(facts.size()), 2}, at::kLong);
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    numbers[row][0] = facts[i].second;
    numbers[row][1] = -facts[i].second;
  }
  at::Tensor greatest = numbers.to(all.parameters().front().device(), at::kLong, false, true);
  comm.all_reduce(greatest, ReduceOp::kMax);
  greatest = greatest.cpu();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const auto most = greatest[row][0].item<std::int64_t>();
    const auto least = -greatest[row][1].item<std::int64_t>();
    if (most == least) continue;
    throw ConfigError("a Synchroniser needs " + facts[i].first + " to be the same on all ranks; found " +
                      std::to_string(least) + " to " + std::to_string(most) + ", and " +
                      std::to_string(facts[i].second) + " on rank " + std::to_string(comm.world_rank()) +
                      "; make the model and the options alike on every rank");
  }
}

std::unique_ptr<data_parallel::Synchronisation> make_synchronisation(const std::vector<at::Tensor>& parameters,
                                                                     const Ranks& ranks,
                                                                     const SynchroniserOptions& options) {
  check(options);
  const FlatParameters all(each_once(parameters));
  std::vector<at::Tensor> requiring;
  for (const auto& parameter : all.parameters()) {
    if (parameter.requires_grad()) requiring.push_back(parameter);
  }
  if (requiring.empty()) {
    throw ConfigError("a Synchroniser needs a parameter that requires a gradient, and none of the " +
                      std::to_string(all.parameters().size()) + " given on rank " +
                      std::to_string(ranks.comm().world_rank()) + " does");
  }
  FlatParameters trained(std::move(requiring));
  // A group of its own, so that its background calls never mix with the program's calls.
  const Communicator comm = ranks.comm().split_by([](int) { return 0; }, "staleness");
  check_agreement(comm, all, options);
  broadcast_all(comm, all.parameters(), 0);
  return parse_synchronisation_mode(options.mode()) == SynchronisationMode::kLocalSgd
             ? make_local_sgd(comm, std::move(trained), options)
             : make_equal_updates(comm, std::move(trained), options);
}

}  // namespace

void StalenessHistogram::add(std::uint64_t staleness) {
  if (counts.size() <= staleness) counts.resize(staleness + 1);
  ++counts[staleness];
}

std::uint64_t StalenessHistogram::total() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

std::uint64_t StalenessHistogram::largest() const { return counts.empty() ? 0 : counts.size() - 1; }

double StalenessHistogram::mean() const {
  double sum = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) sum += static_cast<double>(s) * static_cast<double>(counts[s]);
  return sum == 0 ? 0 : sum / static_cast<double>(total());
}

Synchroniser::Synchroniser(const std::vector<at::Tensor>& parameters, const Ranks& ranks,
                           const SynchroniserOptions& options)
    : mode_(parse_synchronisation_mode(options.mode())),
      synchronisation_(make_synchronisation(parameters, ranks, options)) {}

Synchroniser::~Synchroniser() = default;
Synchroniser::Synchroniser(Synchroniser&&) noexcept = default;
Synchroniser& Synchroniser::operator=(Synchroniser&&) noexcept = default;

void Synchroniser::step(torch::optim::Optimizer& optimizer) {
  if (finished_) throw ConfigError("Synchroniser::step() was called after finish(); make a new Synchroniser to go on");
  synchronisation_->step(optimizer);
}

void Synchroniser::finish(torch::optim::Optimizer& optimizer) {
  if (finished_) return;
  finished_ = true;
  synchronisation_->finish(optimizer);
}

void Synchroniser::before_update(std::function<void(std::uint64_t)> callback) {
  synchronisation_->before_update = std::move(callback);
}

std::uint64_t Synchroniser::version() const { return synchronisation_->version(); }
StalenessHistogram Synchroniser::staleness() const { return synchronisation_->staleness(); }
SynchronisationMode Synchroniser::mode() const { return mode_; }

}  // namespace tessera
