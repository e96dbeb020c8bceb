#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/mesh/device_mesh.h>

#include <ATen/ATen.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

struct MeshSettings {
  int rank = 12345;
  int size = 16384;
  int ranks_per_node = 8;
  std::vector<std::string> axes = {"pp=4", "dp=128", "cp=4", "tp=8"};
};

AxisSpec axis_of(const std::string& text) {
  const auto equals = text.find('=');
  AxisSpec axis{text.substr(0, equals), 0};
  if (equals == std::string::npos || !CLI::detail::lexical_cast(text.substr(equals + 1), axis.size)) {
    throw ConfigError("--axes takes NAME=SIZE,..., found \"" + text + "\"");
  }
  return axis;
}

double resident_megabytes() {
  std::int64_t whole = 0;
  std::int64_t resident = 0;
  if (!(std::ifstream("/proc/self/statm") >> whole >> resident)) throw StorageError("/proc/self/statm cannot be read");
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

void run(const MeshSettings& settings) {
  std::vector<AxisSpec> axes;
  for (const std::string& text : settings.axes) axes.push_back(axis_of(text));
  // Initialises LibTorch before the measurement, which is of the mesh alone.
  const at::Tensor tensor = at::ones({1024});

  const double megabytes_before = resident_megabytes();
  const auto start = std::chrono::steady_clock::now();
  const World world = fake_world(settings.rank, settings.size, settings.ranks_per_node);
  const DeviceMesh mesh(world, axes);
  for (const AxisSpec& axis : axes) mesh[axis.name].comm().all_reduce(tensor);
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;

  const FakeTraffic traffic = fake_traffic(world);
  const nlohmann::json result = {{"rank", settings.rank},
                                 {"size", settings.size},
                                 {"axes", settings.axes},
                                 {"milliseconds", taken.count()},
                                 {"rss_megabytes", resident_megabytes() - megabytes_before},
                                 {"num_groups", traffic.num_groups},
                                 {"num_calls", traffic.num_calls}};
  std::puts(result.dump().c_str());
}

}  // namespace

void add_bench_mesh(CLI::App& bench) {
  CLI::App& command = *bench.add_subcommand(
      "mesh", "Measure what one rank of a large world pays for a mesh and its groups; nothing is sent");
  const auto settings = std::make_shared<MeshSettings>();
  command.add_option("--rank", settings->rank, "This rank")->capture_default_str();
  command.add_option("--size", settings->size, "Ranks of the world")->capture_default_str();
  command.add_option("--ranks-per-node", settings->ranks_per_node, "Ranks of a node")->capture_default_str();
  command.add_option("--axes", settings->axes, "NAME=SIZE,... from the slowest to the fastest")->delimiter(',');
  command.callback([settings] { run(*settings); });
}

}  // namespace tessera::app
