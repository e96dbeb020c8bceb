#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "checkpoint/step_writer.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::flip_a_bit;
using testing::picked;
using testing::sample_step;
using testing::StepWriter;
using testing::WrittenTensor;

std::string read(const SavedStep& step, const WrittenTensor& tensor, const Slice& slice) {
  std::string bytes(static_cast<std::size_t>(slice.num_elements() * dtype_bytes(tensor.dtype)), '?');
  step.read(tensor.group, tensor.name, slice, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

class SavedStepTest : public ::testing::Test {
 protected:
  SavedStepTest() : writer_(sample_step(20)), path_(writer_.write(folder_.path())) {}

  const WrittenTensor& tensor(const std::string& name) const {
    for (const WrittenTensor& tensor : writer_.tensors) {
      if (tensor.name == name) return tensor;
    }
    throw InternalError("no such tensor: " + name);
  }

  testing::TemporaryFolder folder_;
  StepWriter writer_;
  std::filesystem::path path_;
};

TEST_F(SavedStepTest, ReadsWholeTensors) {
  const SavedStep step(path_);
  EXPECT_EQ(step.folder(), path_);
  EXPECT_EQ(step.manifest().step, 20);
  for (const WrittenTensor& each : writer_.tensors) {
    EXPECT_TRUE(read(step, each, Slice::whole(each.shape)) == each.bytes(20)) << each.name;
  }
}

TEST_F(SavedStepTest, ReadsWhatWasSavedAsItWasSaved) {
  const SavedStep step(path_);
  for (const WrittenTensor& each : writer_.tensors) {
    for (const auto& slice : each.slices) {
      const auto element_bytes = static_cast<std::size_t>(dtype_bytes(each.dtype));
      EXPECT_TRUE(read(step, each, slice.slice) == picked(each.bytes(20), element_bytes, slice.slice)) << each.name;
    }
  }
}

// Extents and boxes, of the tensor's shape and of others, against picking element by element.
TEST_F(SavedStepTest, ReadsAnyPlace) {
  const SavedStep step(path_);
  std::mt19937 random(11);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit));
  };
  const std::vector<std::pair<std::string, std::vector<std::vector<std::int64_t>>>> views = {
      {"wte.weight", {{9600}, {96, 100}, {4, 24, 100}, {96, 10, 10}, {4800, 2}}},
      {"h.0.attn.weight", {{11520}, {90, 128}, {3, 30, 4, 32}, {5760, 2}}},
      {"lm_head.weight", {{10240}, {64, 160}, {64, 4, 40}, {2, 32, 160}}},
      {"wte.weight/exp_avg", {{9600}, {96, 100}, {8, 12, 100}, {2, 48, 2, 50}}},
  };
  for (const auto& [name, shapes] : views) {
    const std::string bytes = tensor(name).bytes(20);
    const auto element_bytes = static_cast<std::size_t>(dtype_bytes(tensor(name).dtype));
    for (int round = 0; round < 150; ++round) {
      const auto& view = shapes[static_cast<std::size_t>(below(static_cast<std::int64_t>(shapes.size())))];
      std::vector<std::int64_t> starts;
      std::vector<std::int64_t> sizes;
      for (const std::int64_t size : view) {
        starts.push_back(below(size + 1));
        sizes.push_back(below(size - starts.back() + 1));
      }
      const Slice box = Slice::box(view, starts, sizes);
      const std::string all = picked(bytes, element_bytes, box);
      ASSERT_TRUE(read(step, tensor(name), box) == all) << name << " " << round;
      const std::int64_t first = below(box.num_elements() + 1);
      const Range part{first, below(box.num_elements() - first + 1)};
      ASSERT_TRUE(read(step, tensor(name), box.part(part)) ==
                  all.substr(static_cast<std::size_t>(part.start) * element_bytes,
                             static_cast<std::size_t>(part.size) * element_bytes))
          << name << " " << round;
    }
  }
}

// The rows are shorter than a block and longer than the buffer's windows, and a block holds parts of several.
TEST_F(SavedStepTest, ReadsBoxesWithLongRows) {
  StepWriter writer;
  writer.step = 3;
  writer.num_ranks = 2;
  writer.block_bytes = 1 << 20;
  const std::vector<std::int64_t> shape = {7, 200'000};
  writer.tensors = {
      {"model",
       "wide",
       StoredDtype::kF32,
       shape,
       "model.safetensors",
       {{0, Slice::box(shape, {0, 0}, {7, 90'000})}, {1, Slice::box(shape, {0, 90'000}, {7, 110'000})}}},
      {"model",
       "tall",
       StoredDtype::kU8,
       {60'000, 50},
       "model.safetensors",
       {{0, Slice::box({60'000, 50}, {0, 0}, {60'000, 20})}, {1, Slice::box({60'000, 50}, {0, 20}, {60'000, 30})}}},
      {"model",
       "far",
       StoredDtype::kU8,
       {20, 90'000},
       "model.safetensors",
       {{0, Slice::box({20, 90'000}, {0, 0}, {20, 10})}, {1, Slice::box({20, 90'000}, {0, 10}, {20, 89'990})}}}};
  const SavedStep step(writer.write(folder_.path()));
  EXPECT_TRUE(step.verify().empty());
  for (const WrittenTensor& each : writer.tensors) {
    EXPECT_TRUE(read(step, each, Slice::whole(each.shape)) == each.bytes(3)) << each.name;
    for (const auto& slice : each.slices) {
      const auto element_bytes = static_cast<std::size_t>(dtype_bytes(each.dtype));
      EXPECT_TRUE(read(step, each, slice.slice) == picked(each.bytes(3), element_bytes, slice.slice)) << each.name;
    }
  }
}

TEST_F(SavedStepTest, IsReadFromManyThreads) {
  const SavedStep step(path_);
  std::atomic<int> num_right = 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const WrittenTensor& each = writer_.tensors[i];
      for (int round = 0; round < 20; ++round) {
        if (read(step, each, Slice::whole(each.shape)) == each.bytes(20)) ++num_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 80);
}

TEST_F(SavedStepTest, RefusesWhatIsNotThere) {
  const SavedStep step(path_);
  std::string bytes(4 * 9600, '?');
  const auto refusal = [&](const char* group, const char* name, const Slice& slice, std::size_t num_bytes) {
    const auto into = std::as_writable_bytes(std::span(bytes)).first(num_bytes);
    return testing::message_of<ConfigError>([&] { step.read(group, name, slice, into); });
  };
  const Slice whole = Slice::whole({96, 100});
  testing::expect_parts(refusal("model", "none", whole, 38400), {"step-00000020", "no tensor \"none\"", "model"});
  testing::expect_parts(refusal("optimizer", "wte.weight", whole, 38400), {"no tensor \"wte.weight\""});
  testing::expect_parts(refusal("model", "wte.weight", Slice::whole({95, 100}), 38000), {"[96, 100]", "[95, 100]"});
  testing::expect_parts(refusal("model", "wte.weight", whole, 38399), {"38400 bytes", "38399"});
}

TEST_F(SavedStepTest, ReadsBesideDamageButNotAcrossIt) {
  // Byte 20,000 of the tensor lies in the slice of rank 1, in its second block: bytes 13,332 + 4,096 to + 8,192.
  const SavedStep before(path_);
  const WrittenTensor& wte = tensor("wte.weight");
  const auto& file = before.manifest().files[0];
  const std::uint64_t start = file.header_bytes;  // F32 comes before BF16
  flip_a_bit(path_ / file.name, static_cast<std::streamoff>(start + 20'000));
  const SavedStep step(path_);
  const auto damage = [&](std::int64_t first, std::int64_t count) {
    return testing::message_of<StorageError>([&] { read(step, wte, Slice::extent({96, 100}, {first, count})); });
  };
  EXPECT_TRUE(read(step, wte, Slice::extent({96, 100}, {0, 4357})) == wte.bytes(20).substr(0, 4 * 4357));
  EXPECT_TRUE(read(step, wte, Slice::extent({96, 100}, {5381, 4000})) == wte.bytes(20).substr(4 * 5381, 16000));
  const std::string range = "bytes " + std::to_string(start + 17'428) + " to " + std::to_string(start + 21'524);
  for (const std::string& message : {damage(0, 9600), damage(4357, 1), damage(5380, 1), damage(4357, 1024)}) {
    testing::expect_parts(
        message, {file.name, "\"wte.weight\"", "\"model\"", "rank 1", "elements 3333:6666 of [96, 100]", range});
  }
  const std::vector<std::string> faults = step.verify();
  ASSERT_EQ(faults.size(), 1U);
  testing::expect_parts(faults[0], {file.name, "\"wte.weight\"", "rank 1", range});
}

TEST_F(SavedStepTest, NamesBlocksThatAreDamagedSideBySideOnce) {
  const SavedStep before(path_);
  const auto& file = before.manifest().files[3];
  ASSERT_EQ(file.name, "training.safetensors");
  flip_a_bit(path_ / file.name, static_cast<std::streamoff>(file.header_bytes));
  flip_a_bit(path_ / file.name, static_cast<std::streamoff>(file.header_bytes + 5000));
  const std::vector<std::string> faults = SavedStep(path_).verify();
  ASSERT_EQ(faults.size(), 1U);
  testing::expect_parts(faults[0], {"random/rank/0/cpu", "bytes " + std::to_string(file.header_bytes) + " to " +
                                                             std::to_string(file.header_bytes + 5056)});
}

TEST_F(SavedStepTest, TellsHowFarVerifyingIs) {
  const SavedStep step(path_);
  std::uint64_t last = 0;
  bool ascends = true;
  EXPECT_TRUE(step.verify([&](std::uint64_t done) {
                    ascends = ascends && done >= last;
                    last = done;
                  })
                  .empty());
  EXPECT_TRUE(ascends);
  EXPECT_EQ(last, step.num_bytes());
}

TEST_F(SavedStepTest, NamesAllFilesThatAreWrong) {
  std::filesystem::remove(path_ / "optimizer.safetensors");
  std::filesystem::resize_file(path_ / "training.safetensors", 100);
  testing::expect_parts(testing::message_of<StorageError>([&] { SavedStep{path_}; }),
                        {"2 faults", "optimizer.safetensors cannot be read: No such file", "training.safetensors",
                         "found 100", "cut short"});
}

TEST_F(SavedStepTest, RefusesAHeaderThatTheManifestDoesNotKnow) {
  // A step whose file was written by another program that knows more tensors; its header's checksum is stated.
  Manifest manifest = SavedStep(path_).manifest();
  std::erase_if(manifest.tensors, [](const ManifestTensor& each) { return each.name == "nothing"; });
  std::ofstream(path_ / "manifest.json") << manifest.to_json();
  testing::expect_parts(testing::message_of<StorageError>([&] { SavedStep{path_}; }),
                        {"training.safetensors", "lists 2 tensors", "manifest 1"});
  manifest.tensors.back().name = "renamed";
  std::ofstream(path_ / "manifest.json") << manifest.to_json();
  testing::expect_parts(testing::message_of<StorageError>([&] { SavedStep{path_}; }),
                        {"training.safetensors", "\"renamed\"", "does not list"});
}

TEST_F(SavedStepTest, RefusesAManifestWithoutEnd) {
  std::filesystem::resize_file(path_ / "manifest.json", (std::uint64_t{1} << 30) + 1);  // takes no room on the disk
  testing::expect_parts(testing::message_of<StorageError>([&] { SavedStep{path_}; }),
                        {"manifest.json", "at most 1073741824", "1073741825"});
}

TEST_F(SavedStepTest, RefusesTheManifestOfAnotherStep) {
  const auto other = sample_step(40).write(folder_.path());
  std::filesystem::copy_file(path_ / "manifest.json", other / "manifest.json",
                             std::filesystem::copy_options::overwrite_existing);
  testing::expect_parts(testing::message_of<StorageError>([&] { SavedStep{other}; }),
                        {"step-00000040/manifest.json", "expected step 40", "found 20"});
  EXPECT_EQ(SavedStep(path_ / "").manifest().step, 20);
}

TEST_F(SavedStepTest, StaysReadableWhenItIsRemoved) {
  const SavedStep step(path_);
  std::filesystem::remove_all(path_);
  EXPECT_TRUE(read(step, tensor("wte.weight"), Slice::whole({96, 100})) == tensor("wte.weight").bytes(20));
  EXPECT_TRUE(step.verify().empty());
}

TEST(NewestIntact, FallsBackAndSaysSo) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> skipped;
  EXPECT_FALSE(newest_intact(folder.path() / "none", true, skipped).has_value());
  EXPECT_FALSE(newest_intact(folder.path(), true, skipped).has_value());
  EXPECT_TRUE(skipped.empty());
  for (const std::int64_t step : {20, 40, 60, 80}) sample_step(step).write(folder.path());
  EXPECT_EQ(newest_intact(folder.path(), true, skipped), 80);
  EXPECT_TRUE(skipped.empty());
  std::filesystem::remove(folder.path() / "step-00000080" / "manifest.json");
  flip_a_bit(folder.path() / "step-00000060" / "optimizer.safetensors", 20'000);
  EXPECT_EQ(newest_intact(folder.path(), false, skipped), 60);
  ASSERT_EQ(skipped.size(), 1U);
  testing::expect_parts(skipped[0], {"step 80 is not whole", "manifest.json", "No such file"});
  skipped.clear();
  EXPECT_EQ(newest_intact(folder.path(), true, skipped), 40);
  ASSERT_EQ(skipped.size(), 2U);
  testing::expect_parts(skipped[1], {"step 60 is not whole", "optimizer.safetensors", "damaged"});
}

}  // namespace
}  // namespace tessera
