// tessera data: makes and shows token files.
#include <CLI/CLI.hpp>

#include "tessera/commands.h"
#include "tessera/data/data_commands.h"

namespace tessera::app {

void add_data(CLI::App& app) {
  CLI::App& data = *app.add_subcommand("data", "Make and look at token files");
  data.require_subcommand(1);
  add_data_pack(data);
  add_data_show(data);
}

}  // namespace tessera::app
