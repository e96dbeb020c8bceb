#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

/// Sets `exit_code`, which outlives `checkpoint`, to 1 when a step is damaged.
void add_checkpoint_verify(CLI::App& checkpoint, int& exit_code);
void add_checkpoint_export(CLI::App& checkpoint);
void add_checkpoint_import(CLI::App& checkpoint);
void add_inspect_checkpoint(CLI::App& inspect);

}  // namespace tessera::app
