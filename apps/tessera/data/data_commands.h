#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

void add_data_pack(CLI::App& data);
void add_data_show(CLI::App& data);

}  // namespace tessera::app
