// tessera bench comm: what every backend and algorithm reaches on this machine, beside bare Gloo, bare MPI and memcpy.
#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/comm_measure/measure.h"
#include "tessera/commands.h"

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

struct CommSettings {
  std::vector<int> ranks{2, 4};
  std::vector<std::int64_t> sizes = MeasureCommOptions().sizes();
  std::int64_t rounds = MeasureCommOptions().rounds();
  double paired_seconds = 0;
  std::vector<std::string> only;
  std::string json;
  std::string table;
  std::string result;  ///< set on the ranks themselves: where rank 0 writes
  bool mpirun = true;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Runs on every rank of the job that the command starts.
void run_rank(const CommSettings& settings) {
  at::set_num_threads(1);
  const World world = init(WorldOptions().timeout(std::chrono::seconds(60)));
  const auto options = MeasureCommOptions()
                           .sizes(settings.sizes)
                           .rounds(settings.rounds)
                           .paired_seconds(settings.paired_seconds)
                           .only(settings.only);
  const auto samples = measure_comm(world, options);
  world.comm().barrier();
  if (world.rank() != 0) return;
  Json json = Json::array();
  for (const auto& sample : samples) {
    json.push_back({{"ranks", world.size()},
                    {"operation", sample.operation},
                    {"contestant", sample.contestant},
                    {"bytes", sample.num_bytes},
                    {"seconds", sample.seconds}});
  }
  std::ofstream(settings.result) << json;
  if (!settings.table.empty()) {
    std::ofstream(settings.table) << suggest_tuning(samples, world.size(), world.num_nodes() > 1);
  }
}

std::vector<std::string> rank_command(const CommSettings& settings, const std::string& result) {
  std::vector<std::string> command{
      launch::own_path(), "bench", "comm", "--as-rank", result, "--rounds", std::to_string(settings.rounds)};
  for (const auto size : settings.sizes) command.insert(command.end(), {"--sizes", std::to_string(size)});
  if (settings.paired_seconds > 0) {
    command.insert(command.end(), {"--paired-seconds", std::to_string(settings.paired_seconds)});
  }
  for (const auto& only : settings.only) command.insert(command.end(), {"--only", only});
  if (!settings.table.empty()) command.insert(command.end(), {"--write-table", settings.table});
  return command;
}

bool in_path(const std::string& program) {
  std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    if (std::filesystem::exists(path.substr(begin, end - begin) + "/" + program)) return true;
    begin = end + 1;
  }
  return false;
}

/// Under mpirun all backends can be measured by the same processes; without it, all but MPI.
Json measure(const CommSettings& settings, int num_ranks) {
  const std::string result = std::filesystem::temp_directory_path() / ("tessera_bench_" + std::to_string(getpid()));
  launch::LocalJob job;
  job.timeout = std::chrono::minutes(15);
  job.command = rank_command(settings, result);
  if (settings.mpirun && in_path("mpirun")) {
    std::vector<std::string> mpirun{
        "mpirun", "--allow-run-as-root",    "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
        "-np",    std::to_string(num_ranks)};
    job.command.insert(job.command.begin(), mpirun.begin(), mpirun.end());
    job.launcher_variables = false;
  } else {
    job.num_ranks = num_ranks;
  }
  std::string faults;
  for (const auto& rank : launch::run(job)) {
    if (rank.exit_code != 0) faults += rank.output + "(exit code " + std::to_string(rank.exit_code) + ")\n";
  }
  if (!faults.empty()) throw CommError("measuring on " + std::to_string(num_ranks) + " ranks failed:\n" + faults);
  std::ifstream file(result);
  Json json = Json::parse(file);
  std::filesystem::remove(result);
  return json;
}

std::string size_text(std::int64_t bytes) {
  return bytes >= 1 << 20 ? std::to_string(bytes >> 20) + " MB" : std::to_string(bytes >> 10) + " KB";
}

void print_table(const Json& samples) {
  std::string heading;
  for (const auto& sample : samples) {
    const auto seconds = sample["seconds"].get<std::vector<double>>();
    const auto operation = sample["operation"].get<std::string>();
    const auto bytes = sample["bytes"].get<std::int64_t>();
    const int ranks = sample["ranks"].get<int>();
    const std::string title = size_text(bytes) + " on " + std::to_string(ranks) + " ranks";
    if (title != heading) {
      std::printf("\n%s\n  %-15s %-10s %12s %25s %10s\n", title.c_str(), "operation", "by", "median us", "range us",
                  "bus GB/s");
      heading = title;
    }
    const double middle = median(seconds);
    const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
    char range[64];
    std::snprintf(range, sizeof(range), "%.1f - %.1f", *least * 1e6, *most * 1e6);
    std::printf("  %-15s %-10s %12.1f %25s %10.2f\n", operation.c_str(),
                sample["contestant"].get<std::string>().c_str(), middle * 1e6, range,
                bus_bandwidth(operation, ranks, bytes, middle) / 1e9);
  }
}

void run_parent(const CommSettings& settings) {
  Json samples = Json::array();
  for (const int ranks : settings.ranks) {
    Json measured = measure(settings, ranks);
    std::stable_sort(measured.begin(), measured.end(), [](const Json& a, const Json& b) {
      return std::pair(a["bytes"].get<std::int64_t>(), a["operation"].get<std::string>()) <
             std::pair(b["bytes"].get<std::int64_t>(), b["operation"].get<std::string>());
    });
    print_table(measured);
    for (auto& sample : measured) samples.push_back(std::move(sample));
  }
  if (!settings.json.empty()) std::ofstream(settings.json) << Json{{"samples", samples}} << "\n";
}

}  // namespace

void add_bench_comm(CLI::App& bench) {
  auto settings = std::make_shared<CommSettings>();
  CLI::App& command = *bench.add_subcommand(
      "comm", "Latency and bus bandwidth of every backend and algorithm, beside bare Gloo, bare MPI and memcpy");
  command.add_option("--ranks", settings->ranks, "World sizes, as processes of this machine")->delimiter(',');
  command.add_option("--sizes", settings->sizes, "Bytes of the whole tensor")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--rounds", settings->rounds, "How often each contestant is measured");
  command.add_option("--paired-seconds", settings->paired_seconds,
                     "Compare call by call, in turns, for this long at each operation and size");
  command.add_option("--only", settings->only, "Measure contestants whose name contains this")->delimiter(',');
  command.add_option("--json", settings->json, "Write all samples to this file");
  command.add_option("--write-table", settings->table, "Write the table of the adaptive strategy to this file");
  command.add_flag("!--no-mpirun", settings->mpirun, "Do not start the ranks by mpirun; leaves MPI out");
  command.add_option("--as-rank", settings->result)->group("");
  command.callback([settings] {
    if (settings->result.empty()) {
      run_parent(*settings);
    } else {
      run_rank(*settings);
    }
  });
}

}  // namespace tessera::app
