#include <tessera/checkpoint/safetensors_folder.h>
#include <tessera/checkpoint/safetensors_index.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFolder;

TensorsByName five_tensors() {
  TensorsByName tensors;
  for (int i = 0; i < 5; ++i) tensors.emplace("layer." + std::to_string(i), at::full({10}, i, at::kFloat));
  return tensors;
}

void expect_same(const SafetensorsFolder& folder, const TensorsByName& expected) {
  EXPECT_EQ(folder.names().size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(folder.read(name), tensor)) << name;
}

TEST(SafetensorsFolder, IsOneFileWhenEverythingFits) {
  const TemporaryFolder folder;
  save_safetensors_folder(folder.path() / "model", five_tensors());
  expect_same(SafetensorsFolder(folder.path() / "model"), five_tensors());
  expect_same(SafetensorsFolder(folder.path() / "model" / "model.safetensors"), five_tensors());
}

TEST(SafetensorsFolder, IsSeveralFilesWithAnIndexOtherwise) {
  const TemporaryFolder folder;
  save_safetensors_folder(folder.path(), five_tensors(), {}, 80);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "model-00003-of-00003.safetensors"));
  const SafetensorsFolder read(folder.path());
  expect_same(read, five_tensors());
  expect_same(SafetensorsFolder(folder.path() / "model.safetensors.index.json"), five_tensors());
  EXPECT_EQ(read.at("layer.3").shape, (std::vector<std::int64_t>{10}));
  EXPECT_TRUE(at::equal(read.read_slice("layer.3", Slice::extent(read.at("layer.3").shape, {2, 3})),
                        at::full({3}, 3, at::kFloat)));
  const auto index = SafetensorsIndex::parse(testing::text_of_file(folder.file("model.safetensors.index.json")), "i");
  EXPECT_EQ(index.num_bytes, 200U);
  EXPECT_EQ(index.files().size(), 3U);
  expect_parts(message_of<ConfigError>([&] { read.read("layer.9"); }), {"\"layer.9\"", "5 tensors"});
}

TEST(SafetensorsFolder, IsNotSavedOverTheOtherForm) {
  const TemporaryFolder folder;
  save_safetensors_folder(folder.path(), five_tensors());
  expect_parts(message_of<ConfigError>([&] { save_safetensors_folder(folder.path(), five_tensors(), {}, 80); }),
               {"model.safetensors", "Remove it"});
  save_safetensors_folder(folder.path(), {{"new", at::ones({1})}});
  EXPECT_EQ(SafetensorsFolder(folder.path()).names(), (std::vector<std::string>{"new"}));
}

TEST(SafetensorsFolder, RefusesNeitherAndBoth) {
  const TemporaryFolder folder;
  expect_parts(message_of<ConfigError>([&] { SafetensorsFolder{folder.path()}; }), {"neither"});
  save_safetensors_folder(folder.path(), five_tensors());
  folder.write("model.safetensors.index.json", R"({"weight_map":{}})", 0600);
  expect_parts(message_of<ConfigError>([&] { SafetensorsFolder{folder.path()}; }), {"both"});
}

TEST(SafetensorsFolder, RefusesFilesThatDoNotAgreeWithTheIndex) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("a.safetensors"), {{"x", at::ones({1})}});
  save_safetensors(folder.file("b.safetensors"), {{"y", at::ones({1})}});
  const auto refused = [&folder](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map":)" + map + "}", 0600);
    return message_of<StorageError>([&] { SafetensorsFolder{folder.path()}; });
  };
  expect_parts(refused(R"({"x":"a.safetensors","z":"b.safetensors"})"), {"\"y\"", "does not list"});
  expect_parts(refused(R"({"x":"a.safetensors","y":"a.safetensors"})"), {"\"y\"", "does not hold"});
  expect_parts(refused(R"({"x":"b.safetensors","y":"b.safetensors"})"), {"\"x\"", "does not hold"});
  expect_parts(refused(R"({"x":"c.safetensors"})"), {"c.safetensors", "No such file"});
}

TEST(SafetensorsIndex, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text) {
    return message_of<StorageError>([&] { SafetensorsIndex::parse(text, "index.json"); });
  };
  expect_parts(refused("{"), {"index.json", "no JSON"});
  expect_parts(refused("[]"), {"index.json", "weight_map"});
  expect_parts(refused(R"({"weight_map":[]})"), {"weight_map"});
  expect_parts(refused(R"({"weight_map":{"x":1}})"), {"\"x\"", "number"});
  expect_parts(refused(R"({"weight_map":{"x":"a","x":"b"}})"), {"\"x\"", "twice"});
  expect_parts(refused(R"({"weight_map":{},"weight_map":{}})"), {"weight_map", "twice"});
  expect_parts(refused(R"({"weight_map":{},"metadata":{"total_size":-1}})"), {"total_size", "-1"});
  expect_parts(refused(std::string(100'000, '[')), {"deep"});
  for (const char* file : {"../secret", "/etc/passwd", "a/b", "..", ""}) {
    expect_parts(refused(R"({"weight_map":{"x":")" + std::string(file) + "\"}}"), {"\"x\"", "same folder"});
  }
}

TEST(SafetensorsIndex, SurvivesItsText) {
  const SafetensorsIndex index{123, {{"a", "one"}, {"b", "two"}, {"c", "one"}}};
  const auto read = SafetensorsIndex::parse(index.to_json(), "text");
  EXPECT_EQ(read.num_bytes, index.num_bytes);
  EXPECT_EQ(read.file_of, index.file_of);
  EXPECT_EQ(read.files(), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(SafetensorsIndex::parse(R"({"weight_map":{},"metadata":{"total_size":12.0}})", "text").num_bytes, 12U);
}

TEST(ShardName, IsThatOfHuggingFace) {
  EXPECT_EQ(shard_name(0, 1), "model.safetensors");
  EXPECT_EQ(shard_name(1, 12), "model-00002-of-00012.safetensors");
}

}  // namespace
}  // namespace tessera
