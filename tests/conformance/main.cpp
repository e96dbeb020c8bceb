// conformance threads N | spawn BACKEND N | rank BACKEND; device_conformance likewise, on tensors of devices.
// Every collective on every promised type and size against a reference computed in one process.
#include <tessera/comm/world.h>
#include <tessera/launch/local_job.h>

#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>

#include "conformance/cases.h"
#include "conformance/place.h"
#include "support/socket_transport.h"

namespace {

using tessera::testing::Tally;

int report(const std::string& backend, const tessera::World& world, const Tally& tally) {
  const std::string where = backend + tessera::testing::name_of_place() + " rank " + std::to_string(world.rank()) +
                            " of " + std::to_string(world.size());
  for (const auto& failure : tally.failures()) std::printf("FAILED on %s: %s\n", where.c_str(), failure.c_str());
  std::printf("%s: %lld cases, %zu failed\n", where.c_str(), static_cast<long long>(tally.num_cases()),
              tally.failures().size());
  std::fflush(stdout);
  return tally.failures().empty() ? 0 : 1;
}

int run_rank(const std::string& backend) {
  auto options = tessera::WorldOptions().backend(backend).timeout(std::chrono::seconds(60));
  if (backend == "custom") {
    options.transport(
        [](const tessera::GroupSpec& spec) { return std::make_unique<tessera::testing::SocketTransport>(spec); });
  }
  auto world = tessera::init(options);
  Tally tally(tessera::testing::place_of(world));
  tessera::testing::run_all(world.comm(), tally);
  world.comm().barrier();
  return report(backend, world, tally);
}

int run_as_threads(int num_ranks) {
  std::mutex mutex;
  int result = 0;
  tessera::run_threads(num_ranks, [&](const tessera::World& world) {
    Tally tally(tessera::testing::place_of(world));
    tessera::testing::run_all(world.comm(), tally);
    const std::lock_guard lock(mutex);
    result |= report("threads", world, tally);
  });
  return result;
}

int spawn(const std::string& backend, int num_ranks) {
  tessera::launch::LocalJob job;
  job.num_ranks = num_ranks;
  job.command = {tessera::launch::own_path(), "rank", backend};
  job.timeout = std::chrono::seconds(280);
  int result = 0;
  for (const auto& rank : tessera::launch::run(job)) {
    std::fputs(rank.output.c_str(), stdout);
    if (rank.exit_code != 0) std::printf("exit code %d\n", rank.exit_code);
    result |= rank.exit_code == 0 ? 0 : 1;
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    tessera::testing::prepare_places();
    if (argc == 3 && std::strcmp(argv[1], "threads") == 0) return run_as_threads(std::stoi(argv[2]));
    if (argc == 4 && std::strcmp(argv[1], "spawn") == 0) return spawn(argv[2], std::stoi(argv[3]));
    if (argc == 3 && std::strcmp(argv[1], "rank") == 0) return run_rank(argv[2]);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  std::puts("usage: conformance threads N | spawn BACKEND N | rank BACKEND");
  return 2;
}
