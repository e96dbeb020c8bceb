// tessera checkpoint: verifies, exports and imports saved steps.
#include <CLI/CLI.hpp>

#include "tessera/checkpoint/checkpoint_commands.h"
#include "tessera/commands.h"

namespace tessera::app {

void add_checkpoint(CLI::App& app, int& exit_code) {
  CLI::App& checkpoint = *app.add_subcommand("checkpoint", "Look after saved checkpoints");
  checkpoint.require_subcommand(1);
  add_checkpoint_verify(checkpoint, exit_code);
  add_checkpoint_export(checkpoint);
  add_checkpoint_import(checkpoint);
}

}  // namespace tessera::app
