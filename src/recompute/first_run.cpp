#include <tessera/intercept/random_draws.h>
#include <tessera/intercept/saved_tensors.h>
#include <tessera/recompute/first_run.h>

#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "recompute/segment.h"

namespace tessera::recompute {
namespace {

/// Stands for a tensor that a node of the first run saved.
class Dropped : public intercept::SavedTensorSlot {
 public:
  explicit Dropped(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  ~Dropped() override {
    if (number_) segment_->forget(*number_);
  }
  Dropped(const Dropped&) = delete;
  Dropped& operator=(const Dropped&) = delete;

  void pack(const at::Tensor& tensor) override { number_ = segment_->note(tensor); }
  at::Tensor unpack() override { return segment_->tensor(*number_); }

 private:
  std::shared_ptr<Segment> segment_;
  std::optional<std::size_t> number_;
};

class Dropping : public intercept::SavedTensorKeeper {
 public:
  explicit Dropping(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  std::unique_ptr<intercept::SavedTensorSlot> make_slot() override { return std::make_unique<Dropped>(segment_); }

 private:
  std::shared_ptr<Segment> segment_;
};

}  // namespace

bool is_wanted() { return at::GradMode::is_enabled(); }

struct FirstRun::State {
  State(std::vector<at::Tensor> given, RunAgain run_again)
      : inputs(std::move(given)),
        segment(std::make_shared<Segment>(inputs, std::move(run_again))),
        keeper(segment),
        scope(keeper) {}

  std::vector<at::Tensor> inputs;
  std::shared_ptr<Segment> segment;
  intercept::RandomDraws draws;
  Dropping keeper;
  intercept::SavedTensorScope scope;
};

FirstRun::FirstRun(std::vector<at::Tensor> inputs, RunAgain run_again)
    : state_(std::make_unique<State>(std::move(inputs), std::move(run_again))) {}

FirstRun::~FirstRun() = default;

void FirstRun::complete() { state_->segment->complete(state_->inputs, state_->draws.any()); }

}  // namespace tessera::recompute
