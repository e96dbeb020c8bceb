#pragma once

#include <tessera/checkpoint/interchange.h>

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}  // namespace CLI

namespace tessera::app {

/// The arguments that export and import share.
struct InterchangeArguments {
  std::string source;
  std::string target;
  std::vector<std::string> renames;
  InterchangeOptions options;

  /// Throws ConfigError for a rename that is not OLD=NEW.
  InterchangeOptions parsed() const;
};

/// `--rename` and `--max-file-bytes`; `arguments` outlives the command.
void add_interchange_options(CLI::App& command, InterchangeArguments& arguments);

/// "148 tensors, 498 MB, in model.safetensors"
std::string report_text(const InterchangeReport& report);

}  // namespace tessera::app
