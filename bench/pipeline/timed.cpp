// One rank of a pipeline whose stages take a set time and no core: PROGRAM BACKEND UNIT_MILLISECONDS [TRACE]
// It makes what a line of its input asks for, such as
//   1f1b/8 3       three steps with that schedule and 8 micro-batches, behind one that is not counted
// and answers with a line of JSON. With TRACE it writes a trace of all steps there. See Answering in bench/harness.
#include <tessera/comm/make_observer.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/timed.h"

namespace {

using tessera::testing::TimedCosts;
using tessera::testing::TimedPipeline;
using tessera::testing::TimedStep;

std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (const int one : numbers) text += (text.empty() ? "" : ", ") + std::to_string(one);
  return "[" + text + "]";
}

void answer(const tessera::World& world, const TimedCosts& costs, const std::string& variant, int num_steps) {
  const std::size_t slash = variant.find('/');
  if (slash == std::string::npos) throw tessera::ConfigError("expected \"1f1b/8\", found \"" + variant + "\"");
  TimedPipeline pipe(world, variant.substr(0, slash), std::stoi(variant.substr(slash + 1)), costs);
  const TimedStep expected = tessera::testing::simulated(pipe.schedule(), costs);
  pipe.step();  // connects
  std::string seconds;
  std::vector<int> most(static_cast<std::size_t>(world.size()));
  for (int i = 0; i < num_steps; ++i) {
    const TimedStep step = pipe.step();
    seconds += (i == 0 ? "" : ", ") + std::to_string(step.seconds);
    for (std::size_t rank = 0; rank < most.size(); ++rank) most[rank] = std::max(most[rank], step.num_live[rank]);
  }
  std::printf("{\"variant\": \"%s\", \"seconds\": [%s], \"live\": %s, \"simulated\": %.6f, \"simulated_live\": %s}\n",
              variant.c_str(), seconds.c_str(), list_of(most).c_str(), expected.seconds,
              list_of(expected.num_live).c_str());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const auto world = tessera::init(tessera::WorldOptions().backend(argv[1]));
  const std::chrono::microseconds unit(static_cast<std::int64_t>(std::stod(argv[2]) * 1000));
  std::unique_ptr<tessera::observe::Observer> observer;
  if (argc > 3) observer = tessera::make_observer(world, tessera::ObserveOptions().progress("off").trace(argv[3]));
  std::string variant;
  for (int num_steps = 0; std::cin >> variant >> num_steps;) answer(world, {unit, unit, unit}, variant, num_steps);
  if (observer) observer->close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    if (argc < 3 || argc > 4) throw tessera::ConfigError("usage: PROGRAM BACKEND UNIT_MILLISECONDS [TRACE]");
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_pipeline_timed: %s\n", error.what());
    return tessera::exit_code(error);
  }
}
