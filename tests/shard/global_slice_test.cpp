#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
#include <torch/nn/modules/linear.h>
#include <gtest/gtest.h>

#include "support/error_message.h"

namespace tessera {
namespace {

/// What another library may have put there.
struct OtherMark : c10::BackendMeta {};

constexpr auto kOtherKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct KeysOf : c10::TensorImpl {
  static c10::DispatchKeySet& in(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->*&KeysOf::key_set_; }
};

TEST(GlobalSlice, IsAllOfATensorUnlessSomebodySaysOtherwise) {
  const at::Tensor tensor = at::zeros({4, 3});
  EXPECT_EQ(global_slice(tensor), Slice::whole({4, 3}));
  const Slice half = Slice::whole({4, 6}).narrow(1, {3, 3});
  set_global_slice(tensor, half);
  EXPECT_EQ(global_slice(tensor), half);
  EXPECT_EQ(global_slice(tensor.detach()), Slice::whole({4, 3})) << "a tensor of its own";
  EXPECT_EQ(global_slice(tensor.clone()), Slice::whole({4, 3}));
  EXPECT_EQ(global_slice(tensor.t()), Slice::whole({3, 4}));
  testing::expect_parts(
      testing::message_of<ConfigError>([&] { set_global_slice(tensor, Slice::whole({4, 6}).narrow(1, {0, 2})); }),
      {"a tensor of the shape [4, 3] is not [0:4, 0:2] of [4, 6]"});
  testing::expect_parts(testing::message_of<ConfigError>([&] { set_global_slice(tensor, half.part({0, 5})); }),
                        {"elements 0:5"});
}

TEST(GlobalSlice, StaysWithATensorThatGetsOtherMemory) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor tensor = at::ones({4, 3}).set_requires_grad(true);
    const auto other = c10::make_intrusive<OtherMark>();
    tensor.unsafeGetTensorImpl()->set_backend_meta(other);
    const Slice half = Slice::whole({4, 6}).narrow(1, {3, 3});
    set_global_slice(tensor, half);
    KeysOf::in(tensor) = KeysOf::in(tensor).add(kOtherKey);
    const at::Tensor memory = at::full({4, 3}, 7, dtype);
    set_memory(tensor, memory);
    EXPECT_TRUE(tensor.is_alias_of(memory));
    EXPECT_EQ(tensor.scalar_type(), dtype);
    EXPECT_EQ(global_slice(tensor), half);
    EXPECT_EQ(tensor.unsafeGetTensorImpl()->get_backend_meta(), other.get()) << "with what others have put there";
    EXPECT_TRUE(KeysOf::in(tensor).has(kOtherKey));
    EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf());
    KeysOf::in(tensor) = KeysOf::in(tensor).remove(kOtherKey);
  }
}

TEST(GlobalSlice, StaysAfterConversionsOfTheModel) {
  torch::nn::Linear layer(3, 4);
  const Slice half = Slice::whole({4, 6}).narrow(1, {3, 3});
  set_global_slice(layer->weight, half);
  layer->to(at::kDouble);
  EXPECT_EQ(global_slice(layer->weight), half);
  layer->weight.set_data(at::ones({4, 3}));
  EXPECT_EQ(global_slice(layer->weight), half);
  const torch::NoGradGuard no_grad;
  layer->weight.t_();
  testing::expect_parts(testing::message_of<ConfigError>([&] { global_slice(layer->weight); }),
                        {"a tensor of the shape [3, 4] is not", half.text()});
}

TEST(GlobalSlice, OfATensorThatIsGoneIsForgotten) {
  const Slice half = Slice::whole({4, 6}).narrow(1, {3, 3});
  for (int i = 0; i < 100; ++i) {
    const at::Tensor tensor = at::zeros({4, 3});
    EXPECT_EQ(global_slice(tensor), Slice::whole({4, 3})) << "at an address that was used before";
    set_global_slice(tensor, half);
  }
}

TEST(GlobalSlice, StaysWithATensorThatGetsMemoryOfAnotherDevice) {
  const at::Tensor tensor = at::zeros({2}).set_requires_grad(true);
  const Slice slice = Slice::whole({4}).narrow(0, {0, 2});
  set_global_slice(tensor, slice);
  set_memory(tensor, at::zeros({2}, at::kMeta));
  EXPECT_TRUE(tensor.is_meta());
  EXPECT_FALSE(tensor.key_set().has_backend(c10::BackendComponent::CPUBit));
  EXPECT_TRUE((tensor * 2).is_meta());
  EXPECT_TRUE((tensor * 2).requires_grad());
  EXPECT_EQ(global_slice(tensor), slice);
  set_memory(tensor, at::ones({2}));
  EXPECT_EQ((tensor * 2).sum().item<double>(), 4);
  EXPECT_EQ(global_slice(tensor), slice);
}

}  // namespace
}  // namespace tessera
