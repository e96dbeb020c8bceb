#include "tessera/comm_measure/measure.h"
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "comm/algorithms/tuning_table.h"
#include "tessera/comm_measure/contestant.h"

namespace tessera {
namespace {

using comm::Contestant;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// One contestant with its tensors at one operation and size.
struct Entry {
  CommSample sample;
  std::function<void()> once;
  std::function<std::optional<double>()> elsewhere;
  std::int64_t iterations = 1;
};

bool wanted(const MeasureCommOptions& options, const std::string& name) {
  if (options.only().empty()) return true;
  return std::any_of(options.only().begin(), options.only().end(), [&](const std::string& part) {
    return part.starts_with('=') ? part.substr(1) == name : name.find(part) != std::string::npos;
  });
}

/// `allocate` makes the tensors: the contestant's own, or, in a comparison call by call, one contestant's for all.
std::vector<Entry> entries_for(const Contestant& contestant, std::int64_t num_bytes, int num_ranks,
                               const std::function<at::Tensor(std::int64_t)>& allocate) {
  const std::int64_t count = num_bytes / static_cast<std::int64_t>(sizeof(float)) / num_ranks * num_ranks;
  const at::Tensor whole = allocate(count);
  const at::Tensor piece = allocate(count / num_ranks);
  std::vector<Entry> entries;
  entries.push_back(
      {{"all_reduce", contestant.name, num_bytes, {}}, [=] { contestant.all_reduce(whole); }, contestant.elsewhere});
  entries.push_back({{"all_gather", contestant.name, num_bytes, {}},
                     [=] { contestant.all_gather(whole, piece); },
                     contestant.elsewhere});
  entries.push_back({{"reduce_scatter", contestant.name, num_bytes, {}},
                     [=] { contestant.reduce_scatter(piece, whole); },
                     contestant.elsewhere});
  return entries;
}

std::function<at::Tensor(std::int64_t)> shared_tensors(std::map<std::int64_t, at::Tensor>& made,
                                                       const Contestant& maker) {
  return [&made, &maker](std::int64_t count) {
    at::Tensor& tensor = made[count];
    if (!tensor.defined()) tensor = maker.allocate(count);
    return tensor;
  };
}

/// The time without what `elsewhere` measured. NaN when the entry has `elsewhere`, but no call spent time there.
double seconds_of(const Entry& entry) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < entry.iterations; ++i) entry.once();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const double others = entry.elsewhere ? entry.elsewhere().value_or(kNotANumber) : 0;
  return (spent.count() - others) / static_cast<double>(entry.iterations);
}

double slowest(const Communicator& comm, double seconds) {
  at::Tensor value = at::full({1}, seconds, at::kDouble);
  comm.all_reduce(value, ReduceOp::kMax);
  return value.item<double>();
}

void measure_size(const Communicator& comm, const MeasureCommOptions& options, std::vector<Entry>& entries) {
  for (auto& entry : entries) {  // warm up, and find out how many calls fit into one sample
    entry.iterations = 2;
    seconds_of(entry);
    const double once = slowest(comm, seconds_of(entry));
    entry.iterations = std::clamp<std::int64_t>(std::llround(options.sample_seconds() / once), 1, 2000);
  }
  for (std::int64_t round = 0; round < options.rounds(); ++round) {
    for (auto& entry : entries) {
      comm.barrier();
      entry.sample.seconds.push_back(slowest(comm, seconds_of(entry)));
    }
  }
}

/// Measures contestants at one operation, call by call in turns.
void measure_paired(const Communicator& comm, double seconds, std::vector<Entry*> entries) {
  double once = 0;
  for (Entry* entry : entries) {
    entry->iterations = 3;
    seconds_of(*entry);
    const double spent = slowest(comm, seconds_of(*entry));
    if (!entry->elsewhere) once += spent;
    entry->iterations = 1;
  }
  const std::int64_t rounds = std::clamp<std::int64_t>(std::llround(seconds / once), 25, 4000);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Entry* entry : entries) {
      comm.barrier();
      entry->sample.seconds.push_back(slowest(comm, seconds_of(*entry)));
    }
    std::reverse(entries.begin(), entries.end());
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace

std::vector<CommSample> measure_comm(const World& world, const MeasureCommOptions& options) {
  std::vector<CommSample> samples;
  std::vector<Contestant> contestants = comm::contestants_of(world);
  // A part of a call is measured only in the comparison call by call.
  std::erase_if(contestants, [&](const Contestant& contestant) {
    return !wanted(options, contestant.name) || (contestant.elsewhere && options.paired_seconds() == 0);
  });
  if (contestants.empty()) throw ConfigError("no contestant is left to measure; check the names given");
  for (const std::int64_t num_bytes : options.sizes()) {
    std::vector<Entry> entries;
    std::map<std::int64_t, at::Tensor> tensors;  // by count
    for (const auto& contestant : contestants) {
      // The address of a tensor makes a difference of several percent, so contestants compared call by call share one.
      const auto allocate =
          options.paired_seconds() > 0 ? shared_tensors(tensors, contestants.front()) : contestant.allocate;
      for (auto& entry : entries_for(contestant, num_bytes, world.size(), allocate))
        entries.push_back(std::move(entry));
    }
    if (options.paired_seconds() > 0) {
      for (const char* operation : {"all_reduce", "all_gather", "reduce_scatter"}) {
        std::vector<Entry*> turn;
        for (auto& entry : entries) {
          if (entry.sample.operation == operation) turn.push_back(&entry);
        }
        measure_paired(world.comm(), options.paired_seconds(), std::move(turn));
      }
    } else {
      measure_size(world.comm(), options, entries);
    }
    for (auto& entry : entries) {
      const auto& seconds = entry.sample.seconds;
      if (!seconds.empty() && !std::isnan(seconds.front())) samples.push_back(std::move(entry.sample));
    }
  }
  return samples;
}

double bus_bandwidth(const std::string& operation, int num_ranks, std::int64_t num_bytes, double seconds) {
  const double share = static_cast<double>(num_ranks - 1) / num_ranks;
  const double factor = operation == "all_reduce" ? 2 * share : share;
  return factor * static_cast<double>(num_bytes) / seconds;
}

std::string suggest_tuning(const std::vector<CommSample>& samples, int num_ranks, bool several_nodes) {
  const std::map<std::string, CommunicationStrategy> strategies = {{"", CommunicationStrategy::kBackend},
                                                                   {"+ring", CommunicationStrategy::kRing},
                                                                   {"+tree", CommunicationStrategy::kTree}};
  std::vector<comm::TuningTable::Rule> rules;
  for (const std::string backend : {"shm", "gloo", "mpi"}) {
    std::map<std::int64_t, std::pair<double, CommunicationStrategy>> best;
    for (const auto& sample : samples) {
      if (sample.operation != "all_reduce" || sample.contestant.rfind(backend, 0) != 0) continue;
      const auto strategy = strategies.find(sample.contestant.substr(backend.size()));
      if (strategy == strategies.end()) continue;
      const double seconds = median(sample.seconds);
      const auto [entry, added] = best.try_emplace(sample.num_bytes, seconds, strategy->second);
      if (!added && seconds < entry->second.first) entry->second = {seconds, strategy->second};
    }
    for (const auto& [num_bytes, choice] : best) {
      const bool last = num_bytes == best.rbegin()->first;
      rules.push_back({backend, num_ranks, last ? 0 : num_bytes, several_nodes, choice.second});
    }
  }
  const comm::TuningTable built_in = comm::TuningTable::built_in();  // for what was not measured
  rules.insert(rules.end(), built_in.rules().begin(), built_in.rules().end());
  return comm::TuningTable(std::move(rules)).to_json();
}

}  // namespace tessera
