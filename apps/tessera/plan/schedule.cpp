// tessera plan schedule: pipeline schedules, drawn and costed.
#include <tessera/core/atomic_file.h>
#include <tessera/core/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/plan/plan_commands.h"
#include "tessera/plan/planned_schedule.h"
#include "tessera/plan/schedule_files.h"
#include "tessera/plan/schedule_text.h"

namespace tessera::app {
namespace {

struct ScheduleArguments {
  std::string kind;
  PipelineShape shape;
  int num_chunks = 0;
  bool has_chunks = false;
  std::vector<double> forward = {1};
  std::vector<double> backward = {1};
  std::vector<double> weight = {1};
  double transfer = 0;
  std::string svg;
  std::string json;
  bool list = false;
  std::size_t num_columns = 0;
};

std::string all_kinds() {
  std::string names;
  for (const auto& [name, kind] : pipeline_schedule_names()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// One number is for all layers of a rank, so a stage of several takes its part; several are for the stages.
std::vector<double> of_stages(std::vector<double> costs, int num_chunks) {
  if (costs.size() == 1) costs[0] /= num_chunks;
  return costs;
}

ScheduleCosts costs_of(const ScheduleArguments& arguments, int num_chunks) {
  return ScheduleCosts()
      .forward(of_stages(arguments.forward, num_chunks))
      .backward_input(of_stages(arguments.backward, num_chunks))
      .backward_weight(of_stages(arguments.weight, num_chunks))
      .transfer(arguments.transfer);
}

/// The least of each kind: for checks while it is not known how many stages there are.
ScheduleCosts least_costs(const ScheduleArguments& arguments) {
  const auto least = [](const std::vector<double>& costs) {
    return std::vector<double>{*std::min_element(costs.begin(), costs.end())};
  };
  return ScheduleCosts()
      .forward(least(arguments.forward))
      .backward_input(least(arguments.backward))
      .backward_weight(least(arguments.weight))
      .transfer(arguments.transfer);
}

int chunks_of(const PipelineShape& shape, PipelineScheduleKind kind) {
  return shape.num_chunks.value_or(default_num_chunks(kind));
}

bool costs_nothing(const ScheduleArguments& arguments) {
  const auto is_zero = [](const std::vector<double>& costs) {
    return std::all_of(costs.begin(), costs.end(), [](double cost) { return cost == 0; });
  };
  return is_zero(arguments.forward) && is_zero(arguments.backward) && is_zero(arguments.weight);
}

void add_faults_of_all_kinds(const ScheduleArguments& arguments, std::vector<std::string>& faults) {
  if (arguments.list || !arguments.svg.empty() || !arguments.json.empty()) {
    faults.emplace_back("--list, --svg and --json are of one schedule: add --kind");
  }
  for (const auto* costs : {&arguments.forward, &arguments.backward, &arguments.weight}) {
    if (costs->size() == 1) continue;
    faults.emplace_back("costs of each stage are for one schedule, because kinds have different stages: add --kind");
    break;
  }
}

std::vector<std::string> faults_of(const ScheduleArguments& arguments) {
  std::vector<std::string> faults;
  const auto kind = pipeline_schedule_kind(arguments.kind);
  if (!kind && !arguments.kind.empty()) {
    faults.push_back("there is no schedule " + arguments.kind + ": use one of " + all_kinds());
  }
  const auto of_shape = shape_faults(kind, arguments.shape);
  faults.insert(faults.end(), of_shape.begin(), of_shape.end());
  const bool has_stages = kind && of_shape.empty();
  const auto of_costs =
      has_stages ? cost_faults(costs_of(arguments, 1), chunks_of(arguments.shape, *kind) * arguments.shape.num_ranks)
                 : cost_faults(least_costs(arguments), 1);
  faults.insert(faults.end(), of_costs.begin(), of_costs.end());
  if (costs_nothing(arguments)) faults.emplace_back("no operation takes time: give a cost above 0");
  if (arguments.kind.empty()) add_faults_of_all_kinds(arguments, faults);
  return faults;
}

void show_one(const ScheduleArguments& arguments, PipelineScheduleKind kind) {
  const ScheduleCosts costs = costs_of(arguments, chunks_of(arguments.shape, kind));
  const PlannedSchedule planned = plan_schedule(kind, arguments.shape, costs);
  TextStyle style = style_of_output();
  if (arguments.num_columns > 0) style.num_columns = arguments.num_columns;
  std::string text = title_of(planned) + "\n\n" + drawing(planned, style) + "\n" + figures(planned);
  if (arguments.list) text += operation_list(planned);
  std::fputs(text.c_str(), stdout);
  if (!arguments.svg.empty()) write_file_atomically(arguments.svg, to_svg(planned));
  if (!arguments.json.empty()) write_file_atomically(arguments.json, to_json(planned));
}

void compare_all(const ScheduleArguments& arguments) {
  std::vector<PlannedSchedule> planned;
  for (const auto& [name, kind] : pipeline_schedule_names()) {
    PipelineShape shape = arguments.shape;
    // The others have no choice.
    if (kind != PipelineScheduleKind::kInterleaved) shape.num_chunks = default_num_chunks(kind);
    planned.push_back(plan_schedule(kind, shape, costs_of(arguments, chunks_of(shape, kind))));
  }
  std::fputs(comparison(planned).c_str(), stdout);
}

void run_schedule(ScheduleArguments arguments) {
  if (arguments.has_chunks) arguments.shape.num_chunks = arguments.num_chunks;
  if (const auto faults = faults_of(arguments); !faults.empty()) {
    std::string text = "this pipeline cannot be planned:";
    for (const std::string& fault : faults) text += "\n  - " + fault;
    throw ConfigError(text);
  }
  if (const auto kind = pipeline_schedule_kind(arguments.kind)) {
    show_one(arguments, *kind);
  } else {
    compare_all(arguments);
  }
}

}  // namespace

void add_plan_schedule(CLI::App& plan) {
  CLI::App& command = *plan.add_subcommand("schedule", "Draw a pipeline schedule, and tell what it costs");
  const auto arguments = std::make_shared<ScheduleArguments>();
  command.add_option("--kind", arguments->kind, "One of " + all_kinds() + "; without it all are compared");
  command.add_option("--ranks", arguments->shape.num_ranks, "Ranks of the pipeline")->required();
  command.add_option("--micro-batches", arguments->shape.num_micro_batches, "Micro-batches of a batch")->required();
  CLI::Option* chunks = command.add_option("--chunks", arguments->num_chunks, "Stages of a rank, if interleaved [2]");
  const auto cost = [&](const char* flag, std::vector<double>& costs, const std::string& what) {
    command.add_option(flag, costs, what + " through the layers of a rank, or TIME,TIME,... for each stage [1]")
        ->delimiter(',')
        ->type_name("TIME");
  };
  cost("--forward", arguments->forward, "Time of a forward");
  cost("--backward", arguments->backward, "Time of a backward for the gradients of inputs");
  cost("--weight", arguments->weight, "Time of a backward for the gradients of weights");
  command.add_option("--transfer", arguments->transfer, "Time that a message takes [0]")->type_name("TIME");
  command.add_option("--svg", arguments->svg, "Write a picture")->type_name("FILE");
  command.add_option("--json", arguments->json, "Write the lists, times and figures as JSON")->type_name("FILE");
  command.add_flag("--list", arguments->list, "Print the operations of each rank");
  command.add_option("--columns", arguments->num_columns, "Draw so wide at most [the terminal's width, else 120]");
  command.callback([arguments, chunks] {
    arguments->has_chunks = chunks->count() > 0;
    run_schedule(*arguments);
  });
}

}  // namespace tessera::app
