// tessera checkpoint export: the weights of a step, as Hugging Face's libraries read them.
#include <tessera/checkpoint/interchange.h>
#include <tessera/core/error.h>
#include <tessera/observe/transfer_line.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/checkpoint/interchange_options.h"
#include "tessera/checkpoint/step_choice.h"

namespace tessera::app {
namespace {

void run_export(const InterchangeArguments& arguments) {
  const InterchangeOptions options = arguments.parsed();
  const auto folder = chosen_step(arguments.source);
  SavedStep step(folder);
  const auto count = std::make_shared<ByteCount>();
  step.count_reads(count);
  step.read_alone();
  InterchangeReport report;
  {
    const observe::TransferLine line(observe::process_terminal(true), "exporting " + step_title(folder), count);
    report = export_weights(step, arguments.target, options);
  }
  std::printf("%s: %s, to %s\n", step_title(folder).c_str(), report_text(report).c_str(), arguments.target.c_str());
}

}  // namespace

void add_checkpoint_export(CLI::App& checkpoint) {
  CLI::App& command = *checkpoint.add_subcommand(
      "export", "Copy the weights of a step, checked, into a folder that Hugging Face's libraries read");
  const auto arguments = std::make_shared<InterchangeArguments>();
  command.add_option("STEP", arguments->source, "A step (step-00000020)")->required();
  command.add_option("OUT", arguments->target, "A folder without weights; made when it is missing")->required();
  add_interchange_options(command, *arguments);
  command.callback([arguments] { run_export(*arguments); });
}

}  // namespace tessera::app
