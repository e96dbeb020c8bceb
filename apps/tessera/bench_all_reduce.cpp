#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

struct AllReduceSettings {
  std::string backend = "auto";
  std::vector<std::string> variants = {"allreduce"};
  std::vector<std::uint64_t> sizes_bytes = {std::uint64_t{64} << 20};
  int num_rounds = 7;
  std::string interface;
  bool first = false;
};

/// One contestant: an algorithm over the ranks of the world in an order of its own.
struct Variant {
  std::string name;
  Communicator comm;
};

std::vector<int> order_of(const std::string& text, int size) {
  std::vector<int> order;
  for (const std::string& rank : CLI::detail::split(text, ',')) {
    int value = 0;
    if (!CLI::detail::lexical_cast(rank, value)) throw ConfigError("\"" + rank + "\" is not a rank of --variant");
    order.push_back(value);
  }
  if (static_cast<int>(order.size()) != size) {
    throw ConfigError("--variant @" + text + " should order all " + std::to_string(size) + " ranks, found " +
                      std::to_string(order.size()));
  }
  return order;
}

Variant variant_of(const World& world, const std::string& text) {
  const auto at = text.find('@');
  const auto strategy = parse_communication_strategy(text.substr(0, at));
  if (at == std::string::npos) return {text, world.comm().with_strategy(strategy)};
  const std::vector<int> order = order_of(text.substr(at + 1), world.size());
  return {text, world.comm().split(order, "bench").with_strategy(strategy)};
}

/// How many bytes went over a network interface so far, both ways, as the kernel counts them. They include headers, but
/// not those of the segments into which an offloading interface cuts a packet later.
std::uint64_t interface_bytes(const std::string& interface) {
  std::uint64_t sum = 0;
  for (const char* counter : {"tx_bytes", "rx_bytes"}) {
    const std::string path = "/sys/class/net/" + interface + "/statistics/" + counter;
    std::uint64_t value = 0;
    if (!(std::ifstream(path) >> value)) throw ConfigError("--count-interface: " + path + " cannot be read");
    sum += value;
  }
  return sum;
}

/// Elements differ by position and by rank, so that a misplaced block shows. Small whole numbers: sums are exact in any
/// order.
class Pattern {
 public:
  Pattern(const World& world, std::uint64_t num_bytes)
      : places_(at::arange(static_cast<std::int64_t>(num_bytes / sizeof(float)), at::kFloat).remainder_(1021)),
        sum_(places_ * world.size() + world.size() * (world.size() - 1) / 2),
        rank_(world.rank()) {}

  void fill(at::Tensor& tensor) const { at::add_out(tensor, places_, rank_); }

  void check(const at::Tensor& tensor, const std::string& variant) const {
    if (at::equal(tensor, sum_)) return;
    const auto place = (tensor != sum_).nonzero()[0].item<std::int64_t>();
    throw InternalError("the all_reduce of " + variant + " is wrong on rank " + std::to_string(rank_) + ": element " +
                        std::to_string(place) + " should be " + std::to_string(sum_[place].item<float>()) + ", found " +
                        std::to_string(tensor[place].item<float>()));
  }

  std::int64_t count() const { return places_.numel(); }

 private:
  at::Tensor places_;
  at::Tensor sum_;
  int rank_;
};

class Measurement {
 public:
  Measurement(const World& world, const AllReduceSettings& settings) : world_(world), settings_(settings) {
    for (const std::string& text : settings.variants) variants_.push_back(variant_of(world, text));
  }

  void run(std::uint64_t num_bytes) {
    const Pattern pattern(world_, num_bytes);
    // The first pass connects the groups and touches the memory.
    for (const Variant& variant : variants_) sample(variant, pattern);
    for (int round = 0; round < settings_.num_rounds; ++round) {
      for (const Variant& variant : variants_) print(sample(variant, pattern), variant, pattern, round);
      // Otherwise a variant would always find the caches as the same previous variant left them.
      std::reverse(variants_.begin(), variants_.end());
    }
  }

 private:
  struct Sample {
    double seconds = 0;
    std::optional<std::uint64_t> link_bytes;
  };

  bool counts_link() const { return world_.rank() == 0 && !settings_.interface.empty(); }

  Sample sample(const Variant& variant, const Pattern& pattern) const {
    at::Tensor tensor = variant.comm.empty({pattern.count()}, at::kFloat);
    pattern.fill(tensor);
    // Counted outside the barriers, so that bytes of a rank that runs ahead are included; the barriers send few bytes.
    const std::uint64_t before = counts_link() ? interface_bytes(settings_.interface) : 0;
    world_.comm().barrier();
    const auto start = std::chrono::steady_clock::now();
    variant.comm.all_reduce(tensor);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    world_.comm().barrier();
    Sample sample;
    if (counts_link()) sample.link_bytes = interface_bytes(settings_.interface) - before;
    pattern.check(tensor, variant.name);
    at::Tensor slowest = at::full({1}, taken.count(), at::kDouble);
    world_.comm().all_reduce(slowest, ReduceOp::kMax);
    sample.seconds = slowest.item<double>();
    return sample;
  }

  void print(const Sample& sample, const Variant& variant, const Pattern& pattern, int round) const {
    if (world_.rank() != 0) return;
    nlohmann::json line = {{"variant", variant.name},
                           {"bytes", pattern.count() * static_cast<std::int64_t>(sizeof(float))},
                           {"round", round},
                           {"seconds", sample.seconds}};
    if (sample.link_bytes) line["link_bytes"] = *sample.link_bytes;
    std::puts(line.dump().c_str());
    std::fflush(stdout);
  }

  World world_;
  const AllReduceSettings& settings_;
  std::vector<Variant> variants_;
};

/// The shortest possible job, to measure the time from the start of the processes to their first result.
void run_first(const World& world) {
  at::Tensor one = at::ones({1});
  world.comm().all_reduce(one);
  if (one.item<float>() != static_cast<float>(world.size())) {
    throw InternalError("the first all_reduce is wrong on rank " + std::to_string(world.rank()) + ": expected " +
                        std::to_string(world.size()) + ", found " + std::to_string(one.item<float>()));
  }
  std::puts("ready");
  std::fflush(stdout);
}

void run(const AllReduceSettings& settings) {
  // A misspelt name should end every rank before they meet, not one rank while the others wait for it.
  for (const std::string& text : settings.variants) parse_communication_strategy(text.substr(0, text.find('@')));
  const World world = init(WorldOptions().backend(settings.backend));
  if (settings.first) {
    run_first(world);
    return;
  }
  Measurement measurement(world, settings);
  for (const std::uint64_t num_bytes : settings.sizes_bytes) measurement.run(num_bytes);
}

}  // namespace

void add_bench_all_reduce(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand(
      "all-reduce", "Measure algorithms of the all-reduce in the world that the launcher's variables describe");
  const auto settings = std::make_shared<AllReduceSettings>();
  command.add_option("--backend", settings->backend, "auto, shm, gloo or mpi")->capture_default_str();
  command.add_option("--variant", settings->variants,
                     "STRATEGY, or STRATEGY@RANK,RANK,... for the ranks in that order; several are interleaved");
  command.add_option("--bytes", settings->sizes_bytes, "Sizes: 64M, 4K, ...")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  command.add_option("--rounds", settings->num_rounds, "Samples of each variant and size")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--count-interface", settings->interface,
                     "The network interface whose bytes rank 0 counts in each sample");
  command.add_flag("--first", settings->first, "Only one all-reduce of one element, then print \"ready\"");
  command.callback([settings] { run(*settings); });
}

}  // namespace tessera::app
