#include <tessera/shard/flat_layout.h>
#include <tessera/shard/partition.h>

#include <gtest/gtest.h>

#include <numeric>

namespace tessera {
namespace {

TEST(Partition, GivesTheRemainderToTheFirst) {
  EXPECT_EQ(Partition(10, 4).sizes(), (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(Partition(10, 4).of(2), (Range{6, 2}));
}

TEST(Partition, LeavesPartsEmptyWhenThereAreMoreThanElements) {
  EXPECT_EQ(Partition(2, 4).sizes(), (std::vector<std::int64_t>{1, 1, 0, 0}));
  EXPECT_EQ(Partition(0, 3).sizes(), (std::vector<std::int64_t>{0, 0, 0}));
}

TEST(Partition, CutsBetweenGranulesOnly) {
  EXPECT_EQ(Partition(100, 3, 16).sizes(), (std::vector<std::int64_t>{48, 32, 20}));
  EXPECT_EQ(Partition(20, 3, 16).sizes(), (std::vector<std::int64_t>{16, 4, 0}));
}

TEST(Partition, CoversEveryElementOnceForEverySize) {
  for (std::int64_t size = 0; size < 200; ++size) {
    for (int parts = 1; parts < 10; ++parts) {
      for (const std::int64_t granule : {1, 3, 16}) {
        const Partition partition(size, parts, granule);
        std::int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Range range = partition.of(part);
          ASSERT_EQ(range.start, next);
          ASSERT_GE(range.size, 0);
          ASSERT_LE(range.size, partition.longest());
          next = range.end();
        }
        ASSERT_EQ(next, size);
      }
    }
  }
}

TEST(FlatLayout, StartsTensorsAtMultiplesOfTheAlignment) {
  FlatLayout layout(16);
  layout.add("weight", Slice::whole({3, 5}));
  layout.add("bias", Slice::whole({5}));
  EXPECT_EQ(layout.items()[1].range, (Range{16, 5}));
  EXPECT_EQ(layout.num_elements(), 21);
  EXPECT_EQ(layout.num_tensor_elements(), 20);
}

TEST(FlatLayout, TellsWhoHoldsWhat) {
  FlatLayout layout;
  layout.add("a", Slice::whole({2, 3}));
  layout.add("b", Slice::whole({5}));
  const auto shards = shards_of(layout, Partition(11, 3));
  ASSERT_EQ(shards.size(), 4U);
  EXPECT_EQ(shards[0].name, "a");
  EXPECT_EQ(shards[0].slice, Slice::extent({2, 3}, {0, 4}));
  EXPECT_EQ(shards[1].slice, Slice::extent({2, 3}, {4, 2}));
  EXPECT_EQ(shards[2].name, "b");
  EXPECT_EQ(shards[2].rank, 1);
  EXPECT_EQ(shards[2].slice, Slice::extent({5}, {0, 2}));
  EXPECT_EQ(shards[3].slice, Slice::extent({5}, {2, 3}));
}

}  // namespace
}  // namespace tessera
