#include <tessera/checkpoint/interchange.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/step_writer.h"
#include "support/error_message.h"
#include "support/flip_a_bit.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> sorted_names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// A step of every kind of slice, and where its weights go.
class InterchangeOfSteps : public ::testing::Test {
 protected:
  /// The weights are those of the step, under names that begin with `prefix`.
  void expect_weights(const fs::path& path, const std::string& prefix) const {
    const SafetensorsFolderBytes found(path);
    std::size_t count = 0;
    for (const WrittenTensor& tensor : written_.tensors) {
      if (tensor.group != "model") continue;
      ++count;
      const StoredTensor& stored = found.at(prefix + tensor.name);
      EXPECT_EQ(stored.shape, tensor.shape) << tensor.name;
      EXPECT_EQ(stored.dtype, tensor.dtype) << tensor.name;
      EXPECT_EQ(text_of(found.bytes(prefix + tensor.name)), tensor.bytes(20)) << tensor.name;
    }
    EXPECT_EQ(found.names().size(), count);
  }

  TemporaryFolder folder_;
  StepWriter written_ = sample_step(20);
  fs::path step_ = written_.write(folder_.path() / "saved");
  fs::path out_ = folder_.path() / "out";
};

TEST_F(InterchangeOfSteps, ExportsTheWeightsAlone) {
  const InterchangeReport report = export_weights(SavedStep(step_), out_);
  expect_weights(out_, "");
  EXPECT_EQ(report.num_tensors, 4U);
  EXPECT_EQ(report.num_bytes, 4U + 90 * 128 * 2 + 64 * 160 * 4 + 96 * 100 * 4);
  EXPECT_EQ(sorted_names_in(out_), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(SafetensorsBytes(out_ / "model.safetensors").layout().metadata().at("format"), "pt");
}

TEST_F(InterchangeOfSteps, ExportsSeveralFilesAndRenames) {
  SavedStep step(step_);
  const auto count = std::make_shared<ByteCount>();
  step.count_reads(count);
  const auto report = export_weights(step, out_, {.prefixes = {{"", "net."}}, .max_file_bytes = 50'000});
  expect_weights(out_, "net.");
  EXPECT_EQ(report.files.back(), kIndexFileName);
  EXPECT_EQ(report.files.size(), 4U);
  EXPECT_EQ(count->total, report.num_bytes);
  EXPECT_EQ(count->done, report.num_bytes);
}

TEST_F(InterchangeOfSteps, ChecksWhatItExportsAndLeavesNothingOfDamage) {
  flip_a_bit(step_ / "model-00002-of-00002.safetensors", 20'000);
  expect_parts(message_of<StorageError>([&] { export_weights(SavedStep(step_), out_); }),
               {"model-00002-of-00002.safetensors", "damaged"});
  EXPECT_TRUE(sorted_names_in(out_).empty());
}

TEST_F(InterchangeOfSteps, RefusesToMixWeights) {
  fs::create_directory(out_);
  std::ofstream(out_ / "config.json") << "{}";
  export_weights(SavedStep(step_), out_);
  expect_parts(message_of<ConfigError>([&] { export_weights(SavedStep(step_), out_); }),
               {"out holds model.safetensors already", "another folder"});
}

TEST_F(InterchangeOfSteps, RefusesNamesThatDoNotComeOut) {
  expect_parts(
      message_of<ConfigError>([&] { export_weights(SavedStep(step_), out_, {.prefixes = {{"transformer.", ""}}}); }),
      {"step-00000020", "begins with \"transformer.\""});
  expect_parts(message_of<ConfigError>(
                   [&] { export_weights(SavedStep(step_), out_, {.prefixes = {{"wte.", "x."}, {"lm_head.", "x."}}}); }),
               {"\"lm_head.weight\" and \"wte.weight\"", "\"x.weight\""});
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(InterchangeOfSteps, ImportsWhatItExported) {
  export_weights(SavedStep(step_), out_, {.prefixes = {{"", "net."}}, .max_file_bytes = 50'000});
  const auto root = folder_.path() / "imported";
  const auto count = std::make_shared<ByteCount>();
  const auto report = import_weights(SafetensorsFolderBytes(out_), root, 7, {.prefixes = {{"net.", ""}}}, count);
  EXPECT_EQ(report.num_tensors, 4U);
  EXPECT_EQ(count->total, report.num_bytes);
  EXPECT_EQ(count->done, report.num_bytes);
  EXPECT_EQ(sorted_names_in(root), std::vector<std::string>{"step-00000007"});
  const SavedStep step(root / "step-00000007");
  EXPECT_TRUE(step.verify().empty());
  EXPECT_EQ(step.manifest().step, 7);
  EXPECT_EQ(step.manifest().num_ranks, 1);
  EXPECT_TRUE(step.manifest().values.empty());
  EXPECT_EQ(step.manifest().tensors.front().group, "model");
  expect_weights(root / "step-00000007", "");
}

TEST_F(InterchangeOfSteps, DoesNotImportOverAStep) {
  export_weights(SavedStep(step_), out_);
  const SafetensorsFolderBytes weights(out_);
  expect_parts(message_of<ConfigError>([&] { import_weights(weights, folder_.path() / "saved", 20); }),
               {"step-00000020 is there already"});
  EXPECT_TRUE(SavedStep(step_).verify().empty());
  expect_parts(message_of<ConfigError>([&] { import_weights(weights, folder_.path() / "saved", -1); }), {"step -1"});
}

}  // namespace
}  // namespace tessera::testing
