// A mistake that hangs distributed programs: a decision that each rank takes from its own data. See README.md.
#include <tessera/tessera.h>

#include <ATen/ATen.h>

#include <cstdio>
#include <exception>

namespace {

/// Each rank sees other samples, so each has a loss of its own.
double loss_of(int rank, int step) { return 1.0 / (1 + step) + (rank == 2 ? -0.1 : 0.0); }

void train() {
  const auto world = tessera::init();
  const auto& comm = world.comm();
  auto weights = comm.empty({1024}).fill_(1);
  for (int step = 0; step < 10; ++step) {
    auto gradient = comm.empty({1024}).fill_(world.rank());
    comm.all_reduce(gradient, tessera::ReduceOp::kAvg);
    weights -= 0.01 * gradient;
    // Not all ranks agree that it is good enough: rank 2 does one step before the others.
    if (loss_of(world.rank(), step) < 0.2) comm.broadcast(weights, 0);
  }
}

}  // namespace

int main() {
  try {
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
