#include <tessera/comm/world.h>
#include <tessera/shard/buffer_sync.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/require.h"

namespace tessera {
namespace {

using testing::require_equal;

TEST(BufferSync, GivesAllRanksThoseOfOne) {
  run_threads(3, [](const World& world) {
    BufferSync sync;
    const std::vector<at::Tensor> buffers{at::full({4}, world.rank()), at::full({2}, world.rank(), at::kLong)};
    for (const int root : {0, 2}) {
      buffers[0].fill_(world.rank());
      sync.take(world.comm(), buffers, root);
      require_equal(buffers[0][3].item<float>(), static_cast<float>(root), "rank " + std::to_string(root));
    }
    require_equal(buffers[1][0].item<std::int64_t>(), 0, "as rank 2 has taken it");
  });
}

TEST(BufferSync, DoesNotWriteToWhatIsTheSame) {
  run_threads(2, [](const World& world) {
    BufferSync sync;
    const at::Tensor buffer = at::ones({4});
    const auto version = buffer._version();
    sync.take(world.comm(), {buffer}, 0);
    require_equal(buffer._version(), version, "untouched");
  });
}

/// As BatchNorm's kernels do.
void write_behind_autograd(const at::Tensor& buffer, float value) { buffer.data_ptr<float>()[0] = value; }

TEST(BufferSync, TellsGraphsOnlyOfWhatTheProgramWroteItself) {
  run_threads(2, [](const World& world) {
    BufferSync sync;
    const at::Tensor buffer = at::ones({4});
    const auto version = buffer._version();
    sync.take(world.comm(), {buffer}, 0);
    write_behind_autograd(buffer, static_cast<float>(world.rank()) + 5);
    sync.take(world.comm(), {buffer}, 0);
    require_equal(buffer[0].item<float>(), 5, "taken");
    require_equal(buffer._version(), version, "and graphs do not mind");
    buffer.fill_(world.rank());
    sync.take(world.comm(), {buffer}, 0);
    require_equal(buffer[0].item<float>(), 0, "taken");
    require_equal(buffer._version(), version + 1U + static_cast<unsigned>(world.rank()),
                  "and graphs of rank 1 hear of it");
  });
}

}  // namespace
}  // namespace tessera
