#include <tessera/checkpoint/safetensors_layout.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "checkpoint/header_bytes.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::expect_parts;
using testing::file_with;
using testing::message_of;

StoredTensor spec(const std::string& name, StoredDtype dtype, std::vector<std::int64_t> shape) {
  return {name, dtype, std::move(shape), 0, 0};
}

TEST(SafetensorsLayout, PutsLargerElementsFirstAndThenGoesByName) {
  const auto layout = SafetensorsLayout::plan({spec("c", StoredDtype::kU8, {3}), spec("b", StoredDtype::kF32, {2, 2}),
                                               spec("a", StoredDtype::kBF16, {5}), spec("d", StoredDtype::kF32, {})});
  ASSERT_EQ(layout.tensors().size(), 4U);
  EXPECT_EQ(layout.tensors()[0], (StoredTensor{"b", StoredDtype::kF32, {2, 2}, 0, 16}));
  EXPECT_EQ(layout.tensors()[1], (StoredTensor{"d", StoredDtype::kF32, {}, 16, 20}));
  EXPECT_EQ(layout.tensors()[2], (StoredTensor{"a", StoredDtype::kBF16, {5}, 20, 30}));
  EXPECT_EQ(layout.tensors()[3], (StoredTensor{"c", StoredDtype::kU8, {3}, 30, 33}));
  EXPECT_EQ(layout.data_start() % 8, 0U);
  EXPECT_EQ(layout.num_file_bytes(), layout.data_start() + 33);
}

TEST(SafetensorsLayout, ReadsItsOwnHeaderBack) {
  const auto planned = SafetensorsLayout::plan(
      {spec("h.0.weight", StoredDtype::kF32, {3, 0, 2}), spec("gr\xc3\xb6\xc3\x9f\x65 \"x\"\n", StoredDtype::kI64, {7}),
       spec("", StoredDtype::kBool, {1})},
      {{"format", "pt"}, {"note", "a \\ and a \x01"}});
  const auto read = testing::parse(planned.header() + std::string(planned.num_data_bytes(), 'x'));
  EXPECT_EQ(read.tensors(), planned.tensors());
  EXPECT_EQ(read.metadata(), planned.metadata());
  EXPECT_EQ(read.data_start(), planned.data_start());
  EXPECT_EQ(read.header(), planned.header());
}

TEST(SafetensorsLayout, FindsTensorsByNameAlsoInACopy) {
  const auto layout = SafetensorsLayout::plan({spec("b", StoredDtype::kF32, {2}), spec("a", StoredDtype::kU8, {1})});
  const SafetensorsLayout copy = layout;
  EXPECT_EQ(copy.find("a"), &copy.tensors()[1]);
  EXPECT_EQ(copy.find("c"), nullptr);
  expect_parts(message_of<ConfigError>([&] { copy.at("c", "some file"); }), {"some file", "\"c\"", "2 tensors"});
}

TEST(SafetensorsLayout, HoldsNoTensorAtAll) {
  const auto layout = SafetensorsLayout::plan({});
  EXPECT_EQ(layout.num_data_bytes(), 0U);
  EXPECT_TRUE(testing::parse(layout.header()).tensors().empty());
  EXPECT_TRUE(testing::parse(file_with("{}", 0)).tensors().empty());
}

TEST(SafetensorsLayout, RefusesToPlanWhatCannotBeWritten) {
  const auto plan_error = [](std::vector<StoredTensor> tensors, SafetensorsLayout::Metadata metadata = {}) {
    return message_of<ConfigError>([&] { SafetensorsLayout::plan(std::move(tensors), std::move(metadata)); });
  };
  expect_parts(plan_error({spec("a", StoredDtype::kU8, {1}), spec("a", StoredDtype::kF32, {1})}), {"\"a\"", "twice"});
  expect_parts(plan_error({spec("__metadata__", StoredDtype::kU8, {1})}), {"__metadata__"});
  expect_parts(plan_error({spec("a", StoredDtype::kU8, {-1})}), {"\"a\"", "[-1]"});
  expect_parts(plan_error({spec("a", StoredDtype::kU8, {std::int64_t{1} << 40, std::int64_t{1} << 40})}), {"\"a\""});
  expect_parts(plan_error({spec("a\xff", StoredDtype::kU8, {1})}), {"UTF-8", "\\xff"});
  expect_parts(plan_error({}, {{"note", "\xc3"}}), {"UTF-8"});
}

TEST(SafetensorsLayout, AcceptsHeadersOfOtherWriters) {
  // In another order, with white space inside, unaligned, and padded with spaces.
  const auto layout =
      testing::parse(file_with(R"({ "b": {"shape": [1], "data_offsets": [2, 6], "dtype": "F32"},)"
                               R"( "a": {"data_offsets": [0, 2], "dtype": "BF16", "shape": []}, "empty": )"
                               R"({"dtype": "F32", "shape": [0], "data_offsets": [2, 2]}, "__metadata__": {} }   )",
                               6));
  ASSERT_EQ(layout.tensors().size(), 3U);
  EXPECT_EQ(layout.tensors()[0].name, "a");
  EXPECT_EQ(layout.tensors()[1].name, "empty");
  EXPECT_EQ(layout.tensors()[2].name, "b");
}

TEST(StoredDtype, HasANameAndASizeForEachType) {
  for (int i = 0; i <= static_cast<int>(StoredDtype::kU64); ++i) {
    const auto dtype = static_cast<StoredDtype>(i);
    EXPECT_EQ(dtype_of_name(dtype_name(dtype)), dtype);
    EXPECT_GE(dtype_bytes(dtype), 1);
  }
  EXPECT_EQ(dtype_bytes(StoredDtype::kBF16), 2);
  EXPECT_FALSE(dtype_of_name("F4").has_value());
}

TEST(SafetensorsLayout, StartsTensorsWhereItIsAskedTo) {
  for (const std::uint64_t alignment : {8U, 4096U}) {
    const auto layout = SafetensorsLayout::plan({spec("w", StoredDtype::kF32, {3})}, {}, alignment);
    EXPECT_EQ(layout.data_start() % alignment, 0U);
    EXPECT_LT(layout.data_start(), 64 + alignment);
    const std::string header = layout.header();
    EXPECT_EQ(header.size(), layout.data_start());
    const auto parsed =
        SafetensorsLayout::parse(std::as_bytes(std::span(header)), layout.num_file_bytes(), "the planned file");
    EXPECT_EQ(parsed.data_start(), layout.data_start());
    EXPECT_NE(parsed.find("w"), nullptr);
  }
}

}  // namespace
}  // namespace tessera
