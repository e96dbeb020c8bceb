#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include <tessera/shard/state_broadcast.h>
#include "data_parallel/synchroniser/synchronisation.h"

namespace tessera {
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

/// A model that ties weights lists them twice.
std::vector<at::Tensor> each_once(const std::vector<at::Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<at::Tensor> unique;
  for (const auto& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) unique.push_back(parameter);
  }
  return unique;
}

/// Of which are trained, by their places: two of them may have the same shape.
std::int64_t fingerprint_of_flags(const std::vector<at::Tensor>& parameters) {
  constexpr std::uint64_t kPrime = 1099511628211;
  std::uint64_t print = 14695981039346656037U;
  for (const auto& parameter : parameters) print = (print ^ (parameter.requires_grad() ? 1U : 2U)) * kPrime;
  return static_cast<std::int64_t>(print >> 2U);  // so that its negative is a number too
}

/// Whatever must be the same on every rank, compared in one call.
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
  // A group of its own: what it does in the background never mixes with the user's calls.
  const Communicator comm = ranks.comm().split_by([](int) { return 0; }, "staleness");
  check_agreement(comm, all, options);
  broadcast_all(comm, all.parameters(), 0);
  return parse_synchronisation_mode(options.mode()) == SynchronisationMode::kLocalSgd
             ? make_local_sgd(comm, std::move(trained), options)
             : make_common_updates(comm, std::move(trained), options);
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
