#include <tessera/comm/texts.h>
#include <tessera/comm/world.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

/// Of a length, and other than those of other ranks and lengths.
std::string text_of(int rank, std::size_t length) {
  std::string text(length, static_cast<char>('a' + rank));
  if (length > 0) text.back() = '\0';
  return text;
}

// 1016 bytes travel beside their length, one more does not.
TEST(Texts, ReachEveryRankWhateverTheirLength) {
  const std::vector<std::size_t> lengths{0, 1, 1015, 1016, 1017, 5000};
  run_threads(3, [&](const World& world) {
    for (const std::size_t length : lengths) {
      for (int root = 0; root < 3; ++root) {
        EXPECT_EQ(broadcast_text(world.comm(), text_of(world.rank(), length), root), text_of(root, length)) << length;
      }
      for (const std::size_t other : lengths) {
        const auto length_on = [&](int rank) { return rank == 1 ? other : length; };
        const auto texts = all_gather_texts(world.comm(), text_of(world.rank(), length_on(world.rank())));
        ASSERT_EQ(texts.size(), 3U);
        for (int rank = 0; rank < 3; ++rank) {
          EXPECT_EQ(texts[static_cast<std::size_t>(rank)], text_of(rank, length_on(rank))) << length << ", " << other;
        }
      }
    }
  });
}

TEST(Texts, OfTheOthersAreNotLookedAtInABroadcast) {
  run_threads(2, [](const World& world) {
    const std::string mine = world.rank() == 0 ? "short" : std::string(3000, 'x');
    EXPECT_EQ(broadcast_text(world.comm(), mine, 0), "short");
    EXPECT_EQ(broadcast_text(world.comm(), mine, 1), std::string(3000, 'x'));
  });
}

}  // namespace
}  // namespace tessera
