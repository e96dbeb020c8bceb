// tessera inspect: files that Tessera wrote, for people.
#include <tessera/core/error.h>
#include <tessera/flight/hang_report.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/commands.h"

namespace tessera::app {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad() || !text) {
    throw ConfigError(path + " cannot be read: " + std::strerror(errno) +
                      "; expected a file that tessera run --log-dir DIR wrote, DIR/attempt_K/hang_node_N.json");
  }
  return text.str();
}

void show_hang(const std::string& path) {
  const std::string text = text_of(path);
  try {
    std::fputs(flight::to_text(flight::hang_report_from_json(text)).c_str(), stdout);
  } catch (const ConfigError& error) {
    throw ConfigError(path + ": " + error.what());
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App& inspect = *app.add_subcommand("inspect", "Show a file that Tessera wrote");
  inspect.require_subcommand(1);
  CLI::App& hang = *inspect.add_subcommand("hang", "Why ranks waited for each other");
  const auto path = std::make_shared<std::string>();
  hang.add_option("FILE", *path, "hang_node_N.json, or what a rank left in the same folder")->required();
  hang.callback([path] { show_hang(*path); });
  add_inspect_checkpoint(inspect);
}

}  // namespace tessera::app
