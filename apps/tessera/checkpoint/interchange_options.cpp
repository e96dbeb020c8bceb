#include "tessera/checkpoint/interchange_options.h"

#include <tessera/core/error.h>

#include <CLI/CLI.hpp>

#include "tessera/checkpoint/printed.h"

namespace tessera::app {

void add_interchange_options(CLI::App& command, InterchangeArguments& arguments) {
  command
      .add_option("--rename", arguments.renames,
                  "Names that begin with OLD begin with NEW instead; either may be empty. May stand several times")
      ->type_name("OLD=NEW")
      ->expected(1)
      ->take_all();
  command
      .add_option("--max-file-bytes", arguments.options.max_file_bytes,
                  "More than this becomes several files and an index; 2GB, 500MiB or a number of bytes")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->check(CLI::Validator(CLI::PositiveNumber).description(""))
      ->capture_default_str();
}

InterchangeOptions InterchangeArguments::parsed() const {
  InterchangeOptions result = options;
  for (const std::string& rename : renames) {
    const std::size_t equals = rename.find('=');
    if (equals == std::string::npos) {
      throw ConfigError("--rename expects OLD=NEW, as \"transformer.=\" to take that away; found \"" + rename + "\"");
    }
    result.prefixes.emplace_back(rename.substr(0, equals), rename.substr(equals + 1));
  }
  return result;
}

std::string report_text(const InterchangeReport& report) {
  return counted(report.num_tensors, "tensor") + ", " + size_text(report.num_bytes) + ", in " +
         (report.files.size() == 1 ? report.files[0] : counted(report.files.size(), "file"));
}

}  // namespace tessera::app
