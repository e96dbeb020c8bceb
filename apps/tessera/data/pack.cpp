// tessera data pack: text files to a token file.
#include <tessera/tokens/pack.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/data_commands.h"
#include "tessera/data/tokenizers.h"
#include "tessera/option_flags.h"

namespace tessera::app {
namespace {

struct PackArguments {
  std::string output;
  std::vector<std::string> inputs;
};

std::string plural(std::int64_t count, const std::string& word) {
  return std::to_string(count) + " " + word + (count == 1 ? "" : "s");
}

void run_pack(const PackArguments& arguments, const PackOptions& options) {
  PackOptions::fields().check(options);
  const auto tokenizer = make_tokenizer(options.tokenizer(), options.model());
  const std::vector<std::filesystem::path> inputs(arguments.inputs.begin(), arguments.inputs.end());
  const PackSummary summary = pack(inputs, arguments.output, *tokenizer, options);
  std::printf("%s, %s, %s of %s (%s)\n", plural(summary.num_files, "file").c_str(),
              plural(summary.num_documents, "document").c_str(), plural(summary.num_tokens, "token").c_str(),
              plural(summary.num_text_bytes, "byte").c_str(), tokenizer->name().c_str());
  if (summary.num_empty > 0) std::printf("left out: %s\n", plural(summary.num_empty, "empty document").c_str());
  for (const auto& path : summary.written) std::printf("wrote %s\n", path.c_str());
}

}  // namespace

void add_data_pack(CLI::App& data) {
  CLI::App& command = *data.add_subcommand("pack", "Make a token file from text files");
  const auto arguments = std::make_shared<PackArguments>();
  command.add_option("OUTPUT", arguments->output, "The token file: PREFIX of .bin and .idx, or a file of llm.c's");
  command.add_option("TEXT", arguments->inputs, "Text files, in this order");
  const OptionFlags<PackOptions> flags(command);
  command.callback([arguments, flags] {
    const PackOptions options = flags.resolve();
    if (arguments->inputs.empty()) throw CLI::RequiredError("OUTPUT and at least one TEXT");
    run_pack(*arguments, options);
  });
}

}  // namespace tessera::app
