// What a user of the package writes first. Run as two ranks by tests/package/run.
#include <tessera/tessera.h>

#include <ATen/ATen.h>

#include <cstdio>

int main() {
  auto world = tessera::init();
  auto x = world.comm().empty({4});
  x.fill_(world.rank() + 1);
  world.comm().all_reduce(x);
  const bool right = x.eq(3).all().item<bool>();
  std::printf("Tessera %s, rank %d of %d: sum %g, %s\n", tessera::kVersion, world.rank(), world.size(),
              x[0].item<double>(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
