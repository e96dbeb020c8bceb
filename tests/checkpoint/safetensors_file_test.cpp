#include <tessera/checkpoint/safetensors.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "support/error_message.h"
#include "support/slice_elements.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

using testing::TemporaryFolder;

const std::filesystem::path kReference = TESSERA_REFERENCE_FOLDER;

/// As tests/checkpoint/reference/make writes them.
TensorsByName reference_tensors() {
  const at::Tensor numbers = at::arange(6, at::kFloat).view({2, 3});
  TensorsByName tensors;
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e8m0fnu,
                          at::kShort, at::kUInt16, at::kHalf, at::kBFloat16, at::kInt, at::kUInt32, at::kFloat,
                          at::kComplexFloat, at::kDouble, at::kLong, at::kUInt64}) {
    tensors.emplace("numbers." + std::string(dtype_name(to_stored_dtype(type))), numbers.to(type));
  }
  tensors.emplace("scalar", at::scalar_tensor(2.5));
  tensors.emplace("empty", at::zeros({0, 4}));
  return tensors;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type() &&
         (left.nbytes() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

TEST(SafetensorsFile, ReadsWhatThePythonLibraryWrote) {
  const SafetensorsFile file(kReference / "every_dtype.safetensors");
  const TensorsByName expected = reference_tensors();
  EXPECT_EQ(file.layout().tensors().size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(same_bytes(file.read(name), tensor)) << name;
  EXPECT_EQ(file.layout().metadata(), (SafetensorsLayout::Metadata{{"format", "pt"}}));
}

TEST(SafetensorsFile, IsWrittenAsThePythonLibraryWritesIt) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("ours"), reference_tensors(), {{"format", "pt"}});
  EXPECT_TRUE(testing::text_of_file(folder.file("ours")) ==
              testing::text_of_file(kReference / "every_dtype.safetensors"));
}

TEST(SafetensorsFile, ReadsSlices) {
  const TemporaryFolder folder;
  const at::Tensor whole = at::arange(4 * 5 * 6, at::kLong).view({4, 5, 6}).to(at::kShort);
  save_safetensors(folder.file("f"), {{"t", whole}});
  const SafetensorsFile file(folder.file("f"));
  const Slice all = Slice::whole({4, 5, 6});
  for (const Slice& slice :
       {all, all.narrow(0, {1, 2}), all.narrow(1, {2, 3}), all.narrow(0, {3, 1}).narrow(1, {1, 4}).narrow(2, {2, 3}),
        all.narrow(2, {5, 1}), all.narrow(0, {4, 0}), all.select(2, {{0, 1}, {3, 2}}), all.part({7, 40}),
        all.select(1, {{0, 2}, {4, 1}}).part({5, 31})}) {
    const at::Tensor found = file.read_slice("t", slice);
    EXPECT_TRUE(same_bytes(found.flatten(), testing::elements_of(whole, slice))) << slice.text();
    if (slice.takes_all_selected()) {
      EXPECT_EQ(found.sizes().vec(), slice.selected_shape());
    }
  }
  testing::expect_parts(testing::message_of<ConfigError>([&] { file.read_slice("t", Slice::whole({5, 4, 6})); }),
                        {"/f", "\"t\"", "[4, 5, 6]", "[5, 4, 6]"});
}

TEST(SafetensorsFile, OutlivesItsNameAndTheObjectItWasCopiedFrom) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("f"), {{"t", at::ones({3})}});
  auto file = std::make_unique<SafetensorsFile>(folder.file("f"));
  const SafetensorsFile copy = *file;
  file.reset();
  std::filesystem::remove(folder.file("f"));
  EXPECT_TRUE(same_bytes(copy.read("t"), at::ones({3})));
  EXPECT_EQ(copy.bytes("t").size(), 12U);
}

TEST(SafetensorsFile, SaysWhichTensorThereIsNot) {
  const TemporaryFolder folder;
  save_safetensors(folder.file("f"), {{"t", at::ones({3})}});
  testing::expect_parts(testing::message_of<ConfigError>([&] { SafetensorsFile(folder.file("f")).read("u"); }),
                        {"/f", "\"u\"", "1 tensors", "\"t\""});
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  testing::expect_parts(testing::message_of<StorageError>([&] { SafetensorsFile(folder.file("missing")); }),
                        {"missing", "No such file"});
  testing::expect_parts(testing::message_of<StorageError>([&] { SafetensorsFile(folder.path()); }), {"regular"});
  ASSERT_EQ(mkfifo(folder.file("pipe").c_str(), 0600), 0);
  testing::expect_parts(testing::message_of<StorageError>([&] { SafetensorsFile(folder.file("pipe")); }), {"regular"});
  folder.write("empty", "", 0600);
  testing::expect_parts(testing::message_of<StorageError>([&] { SafetensorsFile(folder.file("empty")); }),
                        {"empty", "8 bytes"});
}

TEST(SafetensorsFile, KeepsItsMemoryToWhatIsAsked) {
  // 4 GB of holes: a reader that loaded the file, or a whole tensor, would show.
  const TemporaryFolder folder;
  const std::int64_t rows = std::int64_t{1} << 20;
  const auto layout = SafetensorsLayout::plan({{"large", StoredDtype::kF32, {rows, 1024}, 0, 0}});
  folder.write("sparse", layout.header(), 0600);
  std::filesystem::resize_file(folder.file("sparse"), layout.num_file_bytes());
  const SafetensorsFile file(folder.file("sparse"));
  const at::Tensor part = file.read_slice("large", Slice::box({rows, 1024}, {rows - 2, 1000}, {2, 24}));
  EXPECT_TRUE(same_bytes(part, at::zeros({2, 24})));
}

}  // namespace
}  // namespace tessera
