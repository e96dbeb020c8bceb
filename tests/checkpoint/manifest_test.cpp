#include <tessera/checkpoint/manifest.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/step_writer.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

Manifest parse(const std::string& text) { return Manifest::parse(text, "some/manifest.json"); }

Manifest sample() {
  const testing::TemporaryFolder folder;
  return parse(testing::text_of_file(testing::sample_step(20).write(folder.path()) / "manifest.json"));
}

TEST(Manifest, SaysWhatTheFileSays) {
  const Manifest manifest = sample();
  EXPECT_EQ(manifest.step, 20);
  EXPECT_EQ(manifest.num_ranks, 4);
  EXPECT_EQ(manifest.block_bytes, 4096U);
  ASSERT_EQ(manifest.files.size(), 5U);
  EXPECT_EQ(manifest.files[2].name, "optimizer.safetensors");
  EXPECT_GT(manifest.files[2].header_bytes, 8U);
  EXPECT_EQ(manifest.files[4].header_bytes, 0U);
  EXPECT_EQ(manifest.tensors.size(), 8U);
  const ManifestTensor* tensor = manifest.find("model", "lm_head.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->dtype, StoredDtype::kF32);
  EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{64, 160}));
  EXPECT_EQ(tensor->file, 1U);
  ASSERT_EQ(tensor->slices.size(), 3U);
  EXPECT_EQ(tensor->slices[2].rank, 2);
  EXPECT_EQ(tensor->slices[2].slice, Slice::whole({64, 160}).narrow(1, {80, 80}));
  EXPECT_EQ(tensor->slices[2].checksums.size(), 5U);
  EXPECT_EQ(manifest.values.at("sampler/epoch"), ManifestValue(std::int64_t{1}));
  EXPECT_EQ(manifest.values.at("scaler/scale"), ManifestValue(65536.0));
  EXPECT_EQ(manifest.values.at("schedule/name"), ManifestValue(std::string("cosine")));
  EXPECT_EQ(manifest.values.at("warm"), ManifestValue(true));
}

TEST(Manifest, FindsTensorsByGroupAndName) {
  const Manifest manifest = sample();
  for (const ManifestTensor& tensor : manifest.tensors) EXPECT_EQ(manifest.find(tensor.group, tensor.name), &tensor);
  EXPECT_EQ(manifest.find("optimizer", "wte.weight"), nullptr);
  EXPECT_EQ(manifest.find("model", "wte.weight/exp_avg"), nullptr);
  EXPECT_EQ(manifest.find("zzz", "zzz"), nullptr);
  EXPECT_EQ(Manifest().find("", ""), nullptr);
}

TEST(Manifest, ComesBackFromItsText) {
  Manifest manifest = sample();
  manifest.values = {{"large", std::numeric_limits<std::int64_t>::max()},
                     {"small", std::numeric_limits<std::int64_t>::min()},
                     {"fraction", 0.1},
                     {"whole fraction", 3.0},
                     {"tiny", 5e-324},
                     {"huge", 1.7976931348623157e308},
                     {"minus", -0.0},
                     {"text", std::string("\"quoted\" \\ \n \x01 \xc3\xa4")},
                     {"", std::string()},
                     {"no", false}};
  const std::string text = manifest.to_json();
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  EXPECT_TRUE(parse(text) == manifest);
  EXPECT_EQ(parse(text).to_json(), text);
  EXPECT_TRUE(parse(Manifest().to_json()) == Manifest());
}

TEST(Manifest, IsTheTextThatTheFormatSays) {
  Manifest manifest;
  manifest.step = 20;
  manifest.files = {{"model.safetensors", 4194568, 264, 0x9d1c6f2ab0c14e75}, {"index.json", 812, 0, 10}};
  EXPECT_EQ(manifest.to_json(),
            testing::with_root(R"({"format":"tessera-checkpoint","version":1,"step":20,"num_ranks":1,)"
                               R"("block_bytes":1048576,"files":[{"name":"model.safetensors","bytes":4194568,)"
                               R"("header_bytes":264,"header_checksum":"9d1c6f2ab0c14e75"},)"
                               R"({"name":"index.json","bytes":812,"checksum":"000000000000000a"}],)"
                               R"("tensors":[],"values":{})"));
}

TEST(Manifest, RefusesToWriteWhatJsonHasNot) {
  Manifest manifest;
  manifest.values["scale"] = std::numeric_limits<double>::infinity();
  testing::expect_parts(testing::message_of<ConfigError>([&] { manifest.to_json(); }), {"\"scale\"", "finite"});
  manifest.values = {{"name", std::string("\xff")}};
  testing::expect_parts(testing::message_of<ConfigError>([&] { manifest.to_json(); }), {"UTF-8", "\\xff"});
}

TEST(Manifest, CutsBytesIntoBlocks) {
  const std::string bytes(10'000, 'x');
  EXPECT_EQ(block_checksums(std::as_bytes(std::span(bytes)), 4096).size(), 3U);
  EXPECT_TRUE(block_checksums({}, 4096).empty());
  EXPECT_EQ(num_blocks(8192, 4096), 2U);
  EXPECT_EQ(num_blocks(8193, 4096), 3U);
}

}  // namespace
}  // namespace tessera
