#include "recompute/replay.h"

#include <utility>

namespace tessera::recompute {
namespace {

/// Keeps the tensor as autograd would: the function may have a backward of its own inside.
class ReplaySlot : public intercept::SavedTensorSlot {
 public:
  explicit ReplaySlot(Replay& replay) : replay_(replay) {}

  void pack(const at::Tensor& tensor) override {
    tensor_ = tensor.tensor_data();  // without its node, which will own this
    replay_.take(tensor);
  }
  at::Tensor unpack() override { return tensor_; }

 private:
  Replay& replay_;
  at::Tensor tensor_;
};

}  // namespace

Replay::Replay(const std::vector<SavedTensor>& expected, bool may_stop, Replayed& replayed)
    : expected_(expected), replayed_(replayed), may_stop_(may_stop) {
  replayed_.slots.resize(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].is_wanted) last_wanted_ = i;
  }
}

std::unique_ptr<intercept::SavedTensorSlot> Replay::make_slot() {
  if (stopped_) return nullptr;  // the function caught what was thrown to stop it: let it
  return std::make_unique<ReplaySlot>(*this);
}

void Replay::take(const at::Tensor& tensor) {
  const std::size_t number = num_taken_++;
  if (number >= expected_.size()) return;
  const SavedTensor& expected = expected_[number];
  const SavedTensor again(tensor);
  expected.require_same(again, number);
  if (expected.is_wanted) replayed_.slots[number] = {tensor.tensor_data(), again.version};
  if (may_stop_ && number == last_wanted_) {
    stopped_ = true;
    throw Stop{this};
  }
}

}  // namespace tessera::recompute
