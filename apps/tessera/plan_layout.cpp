// tessera plan layout: whether a number of ranks can share a model as a file says, before a process starts.
#include <tessera/comm/topology.h>
#include <tessera/core/config_file.h>
#include <tessera/core/error.h>
#include <tessera/mesh/axis_layout.h>
#include <tessera/train/parallelize_options.h>

#include <CLI/CLI.hpp>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/commands.h"

namespace tessera::app {
namespace {

constexpr int kMostRows = 64;

struct LayoutArguments {
  std::string file;
  std::string table = "parallel";
  std::vector<std::string> settings;
  int num_ranks = 0;
};

/// A program's file has tables for other things too.
std::string table_of(const std::string& file, const std::string& name) {
  toml::table all;
  try {
    all = toml::parse_file(file);
  } catch (const toml::parse_error& error) {
    throw ConfigError(file + " cannot be read as TOML: " + std::string(error.description()));
  }
  const toml::table* const found = name.empty() ? &all : all.at_path(name).as_table();
  if (!found)
    throw ConfigError(file + " has no table [" + name + "]: name another one by --table, \"\" for the whole file");
  std::ostringstream text;
  text << toml::toml_formatter(*found);
  return text.str();
}

ParallelizeOptions options_of(const LayoutArguments& arguments) {
  ParallelizeOptions options;
  if (!arguments.file.empty()) {
    parse_config(table_of(arguments.file, arguments.table), arguments.file + " [" + arguments.table + "]", options);
  }
  for (const std::string& setting : arguments.settings) {
    const auto equals = setting.find('=');
    if (equals == std::string::npos) throw ConfigError("--set takes KEY=VALUE, found " + setting);
    ParallelizeOptions::fields().set_text(options, setting.substr(0, equals), setting.substr(equals + 1));
  }
  return options;
}

std::string joined(const std::vector<int>& numbers) {
  std::string text;
  for (const int one : numbers) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return text;
}

void print_ranks(const ThreeDParallelismConfig& layout, int num_ranks) {
  const RankMapping mapping(layout.sizes(), Topology::blocks(num_ranks, num_ranks), layout.axis_order());
  std::printf("rank  dp  tp  pp  batch\n");
  for (int rank = 0; rank < std::min(num_ranks, kMostRows); ++rank) {
    const ThreeDCoordinates at = mapping.coordinates(rank);
    std::printf("%4d  %2d  %2d  %2d  %5d\n", rank, at.dp, at.tp, at.pp, at.dp);
  }
  if (num_ranks > kMostRows) std::printf("... and %d more\n", num_ranks - kMostRows);
}

void plan_layout(const LayoutArguments& arguments) {
  const ParallelizeOptions options = options_of(arguments);
  if (arguments.num_ranks < 1)
    throw ConfigError("--ranks is " + std::to_string(arguments.num_ranks) + ": use 1 or more");
  if (const auto faults = options.faults(arguments.num_ranks); !faults.empty()) {
    std::string text = "the model cannot be shared so by " + std::to_string(arguments.num_ranks) + " ranks:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  const ThreeDParallelismConfig layout = options.layout().for_world(arguments.num_ranks);
  const bool is_sharded = options.data_parallelism() == DataParallelism::kFsdp;
  std::printf("%d ranks: %d %s of the model, each on %d ranks (tp %d x pp %d)\n", arguments.num_ranks, layout.dp(),
              is_sharded ? "shards" : "copies", layout.tp() * layout.pp(), layout.tp(), layout.pp());
  if (layout.pp() > 1) {
    std::printf("schedule: %s\n", std::string(to_string(layout.pipeline_schedule())).c_str());
    if (layout.num_layers() > 0) {
      std::printf("layers of the stages: %s\n",
                  joined(even_layers(layout.num_layers(), layout.pp() * layout.chunks())).c_str());
    }
  }
  print_ranks(layout, arguments.num_ranks);
}

}  // namespace

void add_plan_layout(CLI::App& plan) {
  CLI::App& command = *plan.add_subcommand("layout", "Check how ranks share a model, before a process starts");
  const auto arguments = std::make_shared<LayoutArguments>();
  command.add_option("FILE", arguments->file, "A TOML file of a program; without one the defaults");
  command.add_option("--ranks", arguments->num_ranks, "Ranks of the job")->required();
  command.add_option("--table", arguments->table, "The table of the ParallelizeOptions [parallel]");
  command.add_option("--set", arguments->settings, "Change a setting: --set tp=2")->type_name("KEY=VALUE");
  command.callback([arguments] { plan_layout(*arguments); });
}

}  // namespace tessera::app
