// tessera checkpoint import: a step with nothing but weights, from safetensors files of any origin.
#include <tessera/checkpoint/interchange.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/observe/transfer_line.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/checkpoint/interchange_options.h"

namespace tessera::app {
namespace {

struct ImportArguments : InterchangeArguments {
  std::int64_t step = 0;
};

void run_import(const ImportArguments& arguments) {
  const InterchangeOptions options = arguments.parsed();
  const SafetensorsFolderBytes weights(arguments.source);
  const auto count = std::make_shared<ByteCount>();
  InterchangeReport report;
  {
    const observe::TransferLine line(observe::process_terminal(true), "importing " + arguments.source, count);
    report = import_weights(weights, arguments.target, arguments.step, options, count);
  }
  std::printf("%s: %s, to %s\n", arguments.source.c_str(), report_text(report).c_str(),
              (std::filesystem::path(arguments.target) / step_folder_name(arguments.step)).c_str());
}

}  // namespace

void add_checkpoint_import(CLI::App& checkpoint) {
  CLI::App& command = *checkpoint.add_subcommand(
      "import", "Make a step, with nothing but weights, from safetensors files: for any number of ranks");
  const auto arguments = std::make_shared<ImportArguments>();
  command
      .add_option("SOURCE", arguments->source,
                  "A folder as save_pretrained() writes it, an index of safetensors files, or one file")
      ->required();
  command.add_option("FOLDER", arguments->target, "The folder with the steps; made when it is missing")->required();
  command.add_option("--step", arguments->step, "The number of the step")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_interchange_options(command, *arguments);
  command.callback([arguments] { run_import(*arguments); });
}

}  // namespace tessera::app
