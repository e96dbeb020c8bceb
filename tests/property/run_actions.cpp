#include <torch/torch.h>

#include <limits>
#include <set>

#include "property/archives.h"
#include "property/batches.h"
#include "property/kinds.h"

namespace tessera::testing {
namespace {

using at::Tensor;

Tensor number_of(double value) { return torch::full({}, value, torch::kDouble); }

void step(const Action& /*action*/, User& user, Seen& /*seen*/) {
  // Inside gather() no optimizer may step, and copies of other stages' parameters do not notice it.
  if (user.has_stages()) user.scopes.clear();
  user.optimizer().step();
}

void zero_grad(const Action& action, User& user, Seen& /*seen*/) {
  const bool to_none = action.way % 2 == 0;
  if (action.way / 2 % 2 == 0) {
    user.optimizer().zero_grad(to_none);
  } else {
    user.model().zero_grad(to_none);
  }
}

void clip(const Action& action, User& user, Seen& seen) {
  seen.add("norm", Seen::kAll, number_of(user.clip(action.way % 2 == 0 ? 0.05 : 5)));
}

void make_optimizer(const Action& action, User& user, Seen& /*seen*/) { user.make_optimizer(action.way); }

void reload_optimizer(const Action& /*action*/, User& user, Seen& /*seen*/) {
  std::set<const c10::TensorImpl*> trained;
  for (const auto& [name, tensor] : user.trained()) {
    if (tensor.requires_grad()) trained.insert(tensor.unsafeGetTensorImpl());
  }
  // Some were frozen or unfrozen since: that is another optimizer.
  if (trained != parameters_in(user.optimizer())) return;
  const std::string bytes = saved(user.optimizer());
  user.make_optimizer(user.way_of_optimizer());
  load_into(user.optimizer(), bytes);
}

/// A step as of fp16 training. Now and then the batch of one rank gives an infinity.
void step_with_scaler(const Action& action, User& user, Seen& seen) {
  clear(user);
  user.for_each_part([&](int part) {
    const bool overflows = action.way % 3 == 0 && part == action.number % 2;
    const double factor = overflows ? std::numeric_limits<double>::infinity() : user.share();
    (loss_of(user, action.number, part) * user.scale() * factor).backward();
  });
  seen.add("whether the scaler stepped", Seen::kAll, number_of(user.step_scaled() ? 1 : 0));
  seen.add("scale", Seen::kAll, number_of(user.scale()));
  clear(user);
}

/// Ranks have different numbers of batches. With an optimizer that has no state, because that is not passed on.
void train_uneven(const Action& action, User& user, Seen& /*seen*/) {
  user.make_optimizer(0);
  user.train_joined(
      [&](int part) { return static_cast<int>((action.number + 2 * part) % 3); }, action.way % 2 == 0,
      [&](int part, int index) { (loss_of(user, action.number + index, part) * user.share()).backward(); });
  clear(user);
}

void save_checkpoint(const Action& /*action*/, User& user, Seen& /*seen*/) { user.save_checkpoint(); }

void load_checkpoint(const Action& /*action*/, User& user, Seen& /*seen*/) { user.load_checkpoint(); }

void split_group(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    seen.add("sum in half a group", part,
             number_of(user.sum_in_half(part, [&](int rank) { return static_cast<double>(action.number + rank); })));
  });
}

void mismatch(const Action& action, User& user, Seen& /*seen*/) { user.mismatch(action.way); }

void resize_buckets(const Action& action, User& user, Seen& /*seen*/) {
  user.resize_buckets(64 + 100 * (action.number % 10));
}

bool trains_parameters(const Config& config) { return config.trains_parameters(); }
bool is_ddp(const Config& config) { return config.is_ddp(); }
/// What passes by hand, and join(), need.
bool has_no_stages(const Config& config) { return !config.has_stages(); }
bool is_ddp_of_all(const Config& config) { return config.is_ddp() && has_no_stages(config); }

}  // namespace

const std::vector<Kind>& run_kinds() {
  static const std::vector<Kind> all{
      {"step", 20, step},
      {"zero_grad", 14, zero_grad},
      {"clip", 4, clip},
      {"make_optimizer", 2, make_optimizer, trains_parameters},
      {"reload_optimizer", 1, reload_optimizer},
      {"step_with_scaler", 3, step_with_scaler, has_no_stages},
      {"train_uneven", 2, train_uneven, is_ddp_of_all},
      {"save_checkpoint", 1, save_checkpoint},
      {"load_checkpoint", 1, load_checkpoint},
      {"split_group", 1, split_group},
      {"mismatch", 1, mismatch},
      {"resize_buckets", 2, resize_buckets, is_ddp},
  };
  return all;
}

}  // namespace tessera::testing
