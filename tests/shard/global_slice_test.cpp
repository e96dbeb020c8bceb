#include <tessera/core/error.h>
#include <tessera/shard/global_slice.h>

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>
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
  EXPECT_EQ(global_slice(tensor.detach()), half);
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
    set_global_slice(tensor, half);
    const auto marks = tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
    KeysOf::in(tensor) = KeysOf::in(tensor).add(kOtherKey);
    const at::Tensor memory = at::full({4, 3}, 7, dtype);
    set_memory(tensor, memory);
    EXPECT_TRUE(tensor.is_alias_of(memory));
    EXPECT_EQ(tensor.scalar_type(), dtype);
    EXPECT_EQ(global_slice(tensor), half);
    EXPECT_EQ(tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr(), marks) << "with what lay below it";
    EXPECT_TRUE(KeysOf::in(tensor).has(kOtherKey));
    EXPECT_TRUE(tensor.requires_grad() && tensor.is_leaf());
    KeysOf::in(tensor) = KeysOf::in(tensor).remove(kOtherKey);
  }
}

}  // namespace
}  // namespace tessera
