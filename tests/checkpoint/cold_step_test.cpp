// Steps that the page cache does not hold, as after a restart: see Note [Past the page cache].
#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <string>

#include "checkpoint/load/file_reader.h"
#include "checkpoint/step_writer.h"
#include "support/cold_files.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::picked;

constexpr std::int64_t kRows = 2'100;
constexpr std::int64_t kColumns = 1'003;

class ColdStep : public ::testing::Test {
 protected:
  ColdStep() {
    const std::vector<std::int64_t> shape{kRows, kColumns};
    writer_.step = 4;
    writer_.num_ranks = 2;
    writer_.block_bytes = 1 << 20;
    // The first has the other begin where no page does.
    writer_.tensors = {{"model", "first", StoredDtype::kF32, {3}, "model.safetensors", {{0, Slice::whole({3})}}},
                       {"model", "large", StoredDtype::kF32, shape, "model.safetensors", {{0, part(0)}, {1, part(1)}}}};
    path_ = writer_.write(folder_.path());
    testing::forget_files(path_);
  }

  void SetUp() override {
    if (!testing::is_on_disk(path_)) GTEST_SKIP() << "temporary files are in memory here, not on a disk";
    ASSERT_TRUE(is_cold());
  }

  static Slice part(std::int64_t rank) {
    return Slice::whole({kRows, kColumns}).narrow(0, {rank * kRows / 2, kRows / 2});
  }
  static Slice whole() { return Slice::whole({kRows, kColumns}); }

  std::filesystem::path file() const { return path_ / "model.safetensors"; }
  bool is_cold() const {
    const checkpoints::FileReader reader(file());
    return reader.is_mostly_on_disk(0, reader.num_bytes());
  }
  std::string expected(const Slice& slice) const { return picked(writer_.tensors[1].bytes(4), 4, slice); }
  static std::string read(const SavedStep& step, const Slice& slice) {
    std::string bytes(static_cast<std::size_t>(slice.num_elements()) * 4, '?');
    step.read("model", "large", slice, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  testing::TemporaryFolder folder_;
  testing::StepWriter writer_;
  std::filesystem::path path_;
};

TEST_F(ColdStep, GivesPartsPastThePageCache) {
  const SavedStep step(path_);
  for (const std::int64_t rank : {0, 1}) EXPECT_TRUE(read(step, part(rank)) == expected(part(rank))) << rank;
  EXPECT_TRUE(is_cold());
  // Cut elsewhere than they were saved: blocks of which only a part is wanted.
  for (const std::int64_t first : {1, 700, 1'049}) {
    const Slice other = Slice::whole({kRows, kColumns}).narrow(0, {first, 1'000});
    EXPECT_TRUE(read(step, other) == expected(other)) << first;
  }
}

TEST_F(ColdStep, GivesWholeTensorsThroughItForThoseWhoComeNext) {
  const SavedStep step(path_);
  EXPECT_TRUE(read(step, whole()) == expected(whole()));
  EXPECT_FALSE(is_cold());
}

TEST_F(ColdStep, GivesWholeTensorsPastItToOneThatIsAlone) {
  SavedStep step(path_);
  step.read_alone();
  EXPECT_TRUE(read(step, whole()) == expected(whole()));
  EXPECT_TRUE(is_cold());
}

TEST_F(ColdStep, GivesWhatIsCachedFromThere) {
  const SavedStep step(path_);
  read(step, whole());
  EXPECT_TRUE(read(step, part(1)) == expected(part(1)));
}

TEST_F(ColdStep, NamesWhatIsDamaged) {
  testing::flip_a_bit(file(), -1'500'000);
  testing::forget_files(path_);
  const SavedStep step(path_);
  EXPECT_TRUE(read(step, part(0)) == expected(part(0)));
  testing::expect_parts(testing::message_of<StorageError>([&] { read(step, part(1)); }),
                        {"model.safetensors: tensor \"large\"", "slice of rank 1", "are damaged"});
  EXPECT_TRUE(read(step, part(0)) == expected(part(0))) << "what was asked for ahead is of no more use";
}

TEST_F(ColdStep, TellsThatItWasCutShortWhileItWasOpen) {
  const SavedStep step(path_);
  ASSERT_EQ(truncate(file().c_str(), static_cast<off_t>(std::filesystem::file_size(file()) - 100)), 0);
  testing::expect_parts(testing::message_of<StorageError>([&] { read(step, part(1)); }), {"was cut short"});
}

}  // namespace
}  // namespace tessera
