// Several processes say who they are, sum a tensor, and form a mesh. See README.md beside this file.
#include <tessera/tessera.h>

#include <ATen/ATen.h>

#include <cstdio>
#include <exception>

namespace {

void run() {
  auto world = tessera::init();  // who am I? asks the launcher's variables
  std::printf("rank %d of %d, number %d on node %d\n", world.rank(), world.size(), world.local_rank(), world.node());

  // Memory from the communicator is moved without a copy; any other tensor works too.
  auto x = world.comm().empty({4});
  x.fill_(world.rank() + 1);
  world.comm().all_reduce(x);
  if (world.rank() == 0) {
    std::printf("%d ranks by %s: the sum is %g\n", world.size(), world.comm().backend().c_str(), x[0].item<double>());
  }

  // The same ranks as a grid of named axes; each line of an axis is a group of its own.
  const int rows = world.size() % 2 == 0 ? 2 : 1;
  tessera::DeviceMesh mesh(world, {{"dp", rows}, {"tp", world.size() / rows}});
  auto row = mesh["tp"].comm().all_gather(at::full({1}, world.rank(), at::kInt));
  if (mesh["tp"].coordinate() == 0) {
    std::printf("dp %d holds ranks %d to %d\n", static_cast<int>(mesh["dp"].coordinate()), row[0].item<int>(),
                row[-1].item<int>());
    std::fflush(stdout);
  }
  world.comm().barrier();
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
