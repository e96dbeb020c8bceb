#include <tessera/checkpoint/safetensors.h>
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

SafetensorsLayout two_tensors() {
  return SafetensorsLayout::plan(
      {{"matrix", StoredDtype::kF32, {4, 6}, 0, 0}, {"bias", StoredDtype::kBF16, {6}, 0, 0}});
}

at::Tensor matrix() { return at::arange(24, at::kFloat).view({4, 6}); }
at::Tensor bias() { return at::arange(6, at::kFloat).to(at::kBFloat16); }

TEST(SafetensorsWriter, PutsTheSlicesOfRanksTogether) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("f"), two_tensors());
  // Two by two tiles of unequal width, in no order, as views.
  for (const auto& [row, column, width] : {std::tuple{2, 0, 4}, {0, 4, 2}, {0, 0, 4}, {2, 4, 2}}) {
    writer.write_slice("matrix", Slice::box({4, 6}, {row, column}, {2, width}),
                       matrix().narrow(0, row, 2).narrow(1, column, width));
  }
  writer.write_slice("bias", Slice::extent({6}, {3, 3}), bias().narrow(0, 3, 3));
  writer.write_slice("bias", Slice::extent({6}, {0, 3}), bias().narrow(0, 0, 3));
  writer.commit();
  const TensorsByName read = load_safetensors(folder.file("f"));
  EXPECT_TRUE(at::equal(read.at("matrix"), matrix()));
  EXPECT_TRUE(at::equal(read.at("bias"), bias()));
}

TEST(SafetensorsWriter, WritesViewsAndParametersAsTheyRead) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("f"), two_tensors());
  writer.write("matrix", at::arange(24, at::kFloat).view({6, 4}).t().set_requires_grad(true));
  writer.write("bias", bias());
  writer.commit();
  EXPECT_TRUE(at::equal(load_safetensors(folder.file("f")).at("matrix"), at::arange(24, at::kFloat).view({6, 4}).t()));
}

TEST(SafetensorsWriter, RefusesToCommitWhatIsIncomplete) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder.file("f"), two_tensors());
    writer.write("bias", bias());
    writer.write_slice("matrix", Slice::whole({4, 6}).narrow(0, {0, 3}), matrix().narrow(0, 0, 3));
    expect_parts(message_of<ConfigError>([&] { writer.commit(); }), {"/f", "\"matrix\"", "byte 72 of 96"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, RefusesWhatTheLayoutDoesNotSay) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("f"), two_tensors());
  expect_parts(message_of<ConfigError>([&] { writer.write("other", bias()); }), {"\"other\""});
  expect_parts(message_of<ConfigError>([&] { writer.write("bias", bias().to(at::kFloat)); }), {"BF16", "F32"});
  expect_parts(message_of<ConfigError>([&] { writer.write("matrix", matrix().t()); }), {"[4, 6]", "[6, 4]"});
  expect_parts(message_of<ConfigError>([&] { writer.write("bias", bias().to(at::kComplexDouble)); }),
               {"ComplexDouble"});
  expect_parts(message_of<ConfigError>([&] { writer.write_slice("matrix", Slice::whole({6, 4}), matrix()); }),
               {"[4, 6]", "all of [6, 4]"});
  expect_parts(
      message_of<ConfigError>([&] { writer.write_slice("matrix", Slice::whole({4, 6}).narrow(0, {0, 2}), matrix()); }),
      {"expected the shape [2, 6]"});
  const std::vector<std::byte> bytes(10);
  expect_parts(message_of<ConfigError>([&] { writer.write_bytes("bias", 4, bytes); }), {"12 bytes", "10 from byte 4"});
}

TEST(SafetensorsWriter, RefusesAByteTwice) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder.file("f"), two_tensors());
  writer.write_slice("matrix", Slice::box({4, 6}, {0, 0}, {2, 3}), matrix().narrow(0, 0, 2).narrow(1, 0, 3));
  expect_parts(message_of<ConfigError>([&] { writer.write("matrix", matrix()); }), {"\"matrix\"", "before"});
}

}  // namespace
}  // namespace tessera
