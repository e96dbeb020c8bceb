#pragma once

namespace CLI {
class App;
}  // namespace CLI

namespace tessera::app {

void add_plan_schedule(CLI::App& plan);

}  // namespace tessera::app
