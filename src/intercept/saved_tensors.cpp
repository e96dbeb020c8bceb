#include <tessera/intercept/run_point.h>
#include <tessera/intercept/saved_tensors.h>

#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "intercept/engine_front.h"

namespace tessera::intercept {

SavedTensorScope::SavedTensorScope(SavedTensorKeeper& keeper) : outer_(EngineFront::keeper()) {
  EngineFront::install();
  EngineFront::keeper() = &keeper;
}

SavedTensorScope::~SavedTensorScope() { EngineFront::keeper() = outer_; }

bool SavedTensorScope::is_open() { return EngineFront::keeper() != nullptr; }

SavedTensorDefault::SavedTensorDefault(SavedTensorKeeper& keeper) {
  EngineFront::install();
  EngineFront::default_keeper().store(&keeper, std::memory_order_release);
}

SavedTensorDefault::~SavedTensorDefault() { EngineFront::default_keeper().store(nullptr, std::memory_order_release); }

struct SavedByHand::Saved {
  torch::autograd::SavedVariable tensor;
};

SavedByHand::SavedByHand(const at::Tensor& tensor)
    : saved_(std::make_unique<Saved>(Saved{torch::autograd::SavedVariable(tensor, /*is_output=*/false)})) {}
SavedByHand::~SavedByHand() = default;
SavedByHand::SavedByHand(SavedByHand&& other) noexcept = default;
SavedByHand& SavedByHand::operator=(SavedByHand&& other) noexcept = default;

at::Tensor SavedByHand::unpack() const { return saved_->tensor.unpack(); }

namespace {

/// Of this thread.
thread_local const RunWithPoints* innermost_run = nullptr;

}  // namespace

RunScope::RunScope(const RunWithPoints& run) : outer_(std::exchange(innermost_run, &run)) {}
RunScope::~RunScope() { innermost_run = outer_; }

std::shared_ptr<const RunPoint> current_run_point() { return innermost_run ? innermost_run->point() : nullptr; }

}  // namespace tessera::intercept
