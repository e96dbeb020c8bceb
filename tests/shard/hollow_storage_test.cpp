#include <tessera/shard/hollow_storage.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

c10::DataPtr bytes_of(const at::Tensor& tensor) { return {tensor.mutable_data_ptr(), c10::Device(c10::kCPU)}; }

TEST(HollowStorage, SaysWhyThereIsNothingToRead) {
  const HollowStorage storage(6, at::kFloat, at::kCPU, "it is sharded");
  const at::Tensor view = storage.view(0, {2, 3});
  try {
    view.sum();
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("it is sharded"), std::string::npos) << error.what();
  }
  EXPECT_THROW(view.data_ptr(), c10::Error);
  EXPECT_EQ(view.t().size(0), 3) << "views need no bytes";
}

TEST(HollowStorage, ShowsTheBytesOfTheMomentInEveryView) {
  HollowStorage storage(6, at::kFloat, at::kCPU, "empty");
  const at::Tensor early = storage.view(2, {2, 2});
  const at::Tensor first = at::arange(6, at::kFloat);
  const at::Tensor second = first + 10;
  storage.give(bytes_of(first));
  EXPECT_TRUE(at::equal(early, at::tensor({2.F, 3.F, 4.F, 5.F}).view({2, 2})));
  storage.take("empty again");
  EXPECT_FALSE(storage.has_bytes());
  EXPECT_THROW(early.sum(), c10::Error);
  storage.give(bytes_of(second));
  EXPECT_EQ(early[0][0].item<float>(), 12);
}

TEST(HollowStorage, GivesTheBytesBack) {
  static int num_returned;
  num_returned = 0;
  HollowStorage storage(1, at::kFloat, at::kCPU, "empty");
  float value = 1;
  storage.give({&value, &value, [](void*) { ++num_returned; }, c10::Device(c10::kCPU)});
  EXPECT_EQ(num_returned, 0);
  storage.take("empty");
  EXPECT_EQ(num_returned, 1);
}

}  // namespace
}  // namespace tessera
