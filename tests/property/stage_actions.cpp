// What programs do with a model on the stages of a pipeline, whose passes are steps of that.
#include <torch/torch.h>

#include <limits>

#include "property/batches.h"
#include "property/kinds.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// Batches from `number` on, so many as the way says, with equal weights or with others.
Pass pass_of(std::int64_t number, std::int64_t way) {
  Pass pass;
  for (std::int64_t i = 0; i < 1 + way % 4; ++i) {
    pass.numbers.push_back(number + 37 * i);
    pass.weights.push_back(way / 4 % 2 == 0 ? 1.0 : 1.0 + static_cast<double>(i));
  }
  return pass;
}

void train_stages(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) { seen.add("loss", part, user.pass(pass_of(action.number, action.way), part)); });
}

/// Two steps of the pipeline before one of the optimizer.
void accumulate_stages(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    {
      const auto guard = action.way % 3 == 0 ? user.without_sync() : nullptr;
      seen.add("first loss", part, user.pass(pass_of(action.number, action.way), part));
    }
    seen.add("second loss", part, user.pass(pass_of(action.number + 1, action.way), part));
  });
}

void evaluate_stages(const Action& action, User& user, Seen& seen) {
  Pass pass = pass_of(action.number, action.way);
  pass.trains = false;
  const bool in_training_mode = action.way % 3 == 0;
  if (!in_training_mode) user.model().eval();
  try {
    user.for_each_part([&](int part) {
      const Tensor loss = user.pass(pass, part);
      // Buffers that training changes are rank 0's at the next forward that builds a graph.
      if (!user.model().changes_buffers()) seen.add("loss without gradients", part, loss);
    });
  } catch (...) {
    user.model().train();
    throw;
  }
  user.model().train();
}

/// By itself, where all of it is.
void evaluate_whole(const Action& action, User& user, Seen& seen) {
  const auto whole = user.gather(/*write_back=*/false);
  const torch::NoGradGuard no_grad;
  const Tensor output = output_of(user, action.number);
  if (!user.model().changes_buffers()) seen.add("output of the whole", Seen::kAll, output);
}

/// A forward by hand where a rank has some of it: refused, unless one rank has all.
void call_by_hand(const Action& action, User& user, Seen& seen) {
  const torch::NoGradGuard no_grad;
  const Tensor output = output_of(user, action.number);
  if (!user.model().changes_buffers()) seen.add("output", Seen::kAll, output);
}

/// As of fp16 training. Now and then the batch of one part gives an infinity.
void step_stages_with_scaler(const Action& action, User& user, Seen& seen) {
  clear(user);
  user.for_each_part([&](int part) {
    Pass pass = pass_of(action.number, action.way);
    pass.loss_scale = user.scale();
    if (action.way % 3 == 0 && part == action.number % 2) pass.factor = std::numeric_limits<double>::infinity();
    user.pass(pass, part);
  });
  seen.add("whether the scaler stepped", Seen::kAll, torch::full({}, user.step_scaled() ? 1.0 : 0.0, torch::kDouble));
  seen.add("scale", Seen::kAll, torch::full({}, user.scale(), torch::kDouble));
  clear(user);
}

bool has_stages(const Config& config) { return config.has_stages(); }

}  // namespace

const std::vector<Kind>& stage_kinds() {
  static const std::vector<Kind> all{
      {"train_stages", 30, train_stages, has_stages},
      {"accumulate_stages", 8, accumulate_stages, has_stages},
      {"evaluate_stages", 8, evaluate_stages, has_stages},
      {"evaluate_whole", 3, evaluate_whole, has_stages},
      {"call_by_hand", 2, call_by_hand, has_stages},
      {"step_stages_with_scaler", 4, step_stages_with_scaler, has_stages},
  };
  return all;
}

}  // namespace tessera::testing
