#include "data_parallel/flat_parameters.h"

#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera::data_parallel {
namespace {

TEST(FlatParameters, KeepOneBufferForEachType) {
  const World world = fake_world(0, 1);
  const FlatParameters flat({at::ones({2, 3}), at::ones({4}, at::kDouble), at::ones({5})});
  const FlatBuffers buffers = flat.make_buffers(world.comm());
  ASSERT_EQ(buffers.size(), 2U);
  EXPECT_EQ(buffers[0].numel(), 11);
  EXPECT_EQ(buffers[0].scalar_type(), at::kFloat);
  EXPECT_EQ(buffers[1].numel(), 4);
  EXPECT_EQ(buffers[1].scalar_type(), at::kDouble);
  EXPECT_EQ(flat.num_elements(), 15);
}

TEST(FlatParameters, GiveBackWhatTheyTook) {
  const World world = fake_world(0, 1);
  const at::Tensor strided = at::arange(6, at::kFloat).view({2, 3}).t();
  const at::Tensor other = at::arange(4, at::kDouble);
  const FlatParameters source({strided, other});
  const FlatBuffers buffers = source.make_buffers(world.comm());
  source.read_values(buffers);
  const FlatParameters copy({at::zeros({3, 2}), at::zeros({4}, at::kDouble)});
  copy.write_values(buffers);
  EXPECT_TRUE(at::equal(copy.parameters()[0], strided));
  EXPECT_TRUE(at::equal(copy.parameters()[1], other));
}

TEST(FlatParameters, ReadAMissingGradientAsZeroAndMakeItWhenWritten) {
  const World world = fake_world(0, 1);
  const FlatParameters flat({at::ones({2}).requires_grad_(true), at::ones({3}).requires_grad_(true)});
  flat.parameters()[1].mutable_grad() = at::full({3}, 7.0);
  const FlatBuffers buffers = flat.make_buffers(world.comm());
  buffers[0].fill_(99);
  flat.read_gradients(buffers);
  EXPECT_TRUE(at::equal(buffers[0], at::tensor({0.0F, 0.0F, 7.0F, 7.0F, 7.0F})));
  flat.write_gradients({buffers[0] * 2});
  EXPECT_TRUE(at::equal(flat.parameters()[0].grad(), at::zeros({2})));
  EXPECT_TRUE(at::equal(flat.parameters()[1].grad(), at::full({3}, 14.0)));
}

TEST(FlatParameters, RefuseASparseGradient) {
  const World world = fake_world(0, 1);
  const FlatParameters flat({at::ones({2}).requires_grad_(true)});
  flat.parameters()[0].mutable_grad() = at::ones({2}).to_sparse();
  testing::expect_parts(testing::message_of<ConfigError>([&] { flat.read_gradients(flat.make_buffers(world.comm())); }),
                        {"gradients that travel must be dense", "parameter 0"});
}

TEST(FlatParameters, HaveAFingerprintOfShapesAndTypes) {
  const auto of = [](std::vector<at::Tensor> tensors) { return FlatParameters(std::move(tensors)).fingerprint(); };
  EXPECT_EQ(of({at::ones({2, 3})}), of({at::zeros({2, 3})}));
  EXPECT_NE(of({at::ones({2, 3})}), of({at::ones({3, 2})}));
  EXPECT_NE(of({at::ones({2, 3})}), of({at::ones({2, 3}, at::kDouble)}));
  EXPECT_NE(of({at::ones({2}), at::ones({3})}), of({at::ones({2, 3})}));
}

}  // namespace
}  // namespace tessera::data_parallel
