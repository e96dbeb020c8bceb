#include <tessera/optim/autocast.h>
#include <tessera/shard/parallel_model.h>

#include <torch/torch.h>

#include <exception>
#include <stdexcept>
#include <thread>

#include "property/batches.h"
#include "property/kinds.h"

namespace tessera::testing {
namespace {

using at::Tensor;

/// Buffers that training changes are rank 0's at the next forward, not yet in an evaluation.
bool can_be_compared(User& user) { return !user.model().changes_buffers(); }

void train(const Action& action, User& user, Seen& seen) {
  const auto backward = [&](const Tensor& loss) { (loss * user.share()).backward(); };
  user.for_each_part([&](int part) {
    const Tensor loss = loss_of(user, action.number, part);
    seen.add("loss", part, loss);
    backward(loss);
  });
}

void accumulate(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    {
      const auto guard = action.way % 2 == 0 ? user.without_sync() : nullptr;
      (loss_of(user, action.number, part) * user.share()).backward();
    }
    const Tensor loss = loss_of(user, action.number + 1, part);
    seen.add("second loss", part, loss);
    (loss * user.share()).backward();
  });
}

void train_two_at_once(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    const Tensor loss = loss_of(user, action.number, part) + loss_of(user, action.number + 1, part);
    seen.add("loss of two", part, loss);
    (loss * user.share()).backward();
  });
}

/// As a pipeline does: several forwards, then their backwards in one order or the other.
void train_apart(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    std::vector<Tensor> losses{loss_of(user, action.number, part), loss_of(user, action.number + 1, part)};
    if (action.way % 2 == 1) std::swap(losses.front(), losses.back());
    for (const Tensor& loss : losses) {
      seen.add("loss", part, loss);
      (loss * user.share()).backward();
    }
  });
}

/// As a program that does not know which pass is the last, or a pipeline that averages what is complete.
void train_promised(const Action& action, User& user, Seen& seen) {
  const std::shared_ptr<PromisedGradients> promised = user.promise_gradients();
  user.for_each_part([&](int part) {
    for (const auto number : {action.number, action.number + 1}) {
      const Tensor loss = loss_of(user, number, part);
      seen.add("loss", part, loss);
      (loss * user.share()).backward();
    }
  });
  if (action.way % 4 > 0) {
    std::vector<Tensor> some = user.model().parameters();
    some.resize(some.size() * static_cast<std::size_t>(action.way % 4) / 3);
    if (promised) promised->complete(some);
    user.for_each_part([&](int part) { seen.add("loss of none", part, loss_of(user, action.number + 2, part)); });
  }
  if (promised) promised->finish();
}

void train_with_penalty(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(user, action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor output = user.forward(batch.x, batch);
    Tensor loss = loss_of(output);
    const Tensor slope = torch::autograd::grad({output.sum()}, {batch.x}, {}, true, true, true).front();
    if (slope.defined()) loss = loss + 0.1 * slope.square().mean();
    seen.add("loss with penalty", part, loss);
    (loss * user.share()).backward();
  });
}

void evaluate(const Action& action, User& user, Seen& seen) {
  Tensor output;
  switch (action.way % 4) {
    case 0: {
      const torch::NoGradGuard no_grad;
      output = output_of(user, action.number);
      break;
    }
    case 1: {
      const c10::InferenceMode inference;
      output = output_of(user, action.number).clone();
      break;
    }
    case 2: {
      // With a graph that nobody goes back through. Buffers come from rank 0 first, so these are seen alike.
      user.for_each_part([&](int part) { seen.add("output with a graph", part, loss_of(user, action.number, part)); });
      return;
    }
    default: {
      const torch::NoGradGuard no_grad;
      std::ignore = output_of(user, action.number + 1);
      output = output_of(user, action.number);
    }
  }
  if (can_be_compared(user)) seen.add("output", Seen::kAll, output);
}

void evaluate_a_part(const Action& action, User& user, Seen& seen) {
  const torch::NoGradGuard no_grad;
  const auto children = user.model().children();
  const auto& child = children[static_cast<std::size_t>(action.number) % children.size()];
  auto* const node = dynamic_cast<Node*>(child.get());
  if (!node || node->changes_buffers()) return;
  const Batch batch = make_batch(user, action.number, 0);
  seen.add("output of a part", Seen::kAll, node->forward(batch.x, batch));
}

void evaluate_on_a_thread(const Action& action, User& user, Seen& seen) {
  Tensor output;
  std::exception_ptr error;
  std::thread([&] {
    try {
      const torch::NoGradGuard no_grad;
      output = output_of(user, action.number);
    } catch (...) {
      error = std::current_exception();
      user.model().train();
    }
  }).join();
  if (error) std::rethrow_exception(error);
  if (can_be_compared(user)) seen.add("output of a thread", Seen::kAll, output);
}

void ask_for_slopes(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(user, action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor output = user.forward(batch.x, batch);
    const Tensor slope = torch::autograd::grad({output.sum()}, {batch.x}, {}, false, false, true).front();
    if (slope.defined()) seen.add("slope", part, slope);
  });
}

struct Planned : std::runtime_error {
  Planned() : std::runtime_error("planned") {}
};

void fail_in_forward(const Action& action, User& user, Seen& /*seen*/) {
  user.for_each_part([&](int part) {
    const Batch batch = make_batch(user, action.number, part);
    try {
      const auto child = user.model().children().front();
      if (auto* const node = dynamic_cast<Node*>(child.get())) std::ignore = node->forward(batch.x, batch);
      throw Planned();
    } catch (const Planned&) {
      return;  // as a program that goes on to the next batch
    }
  });
}

void fail_in_backward(const Action& action, User& user, Seen& /*seen*/) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(user, action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor start = batch.x * 1;
    if (start.requires_grad()) {
      start.register_hook([](const Tensor& gradient) -> Tensor {
        if (gradient.defined()) throw Planned();
        return gradient;
      });
    }
    const Tensor loss = loss_of(user.forward(start, batch));
    try {
      (loss * user.share()).backward();
    } catch (const Planned&) {
    }
  });
  clear(user);
}

void go_back_twice(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(user, action.number, part);
    batch.may_recompute = false;
    const Tensor loss = loss_of(user.forward(batch.x, batch)) * user.share();
    seen.add("loss", part, loss / user.share());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

void train_with_autocast(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Tensor loss;
    {
      const Autocast autocast(at::kBFloat16);  // leaves doubles as they are
      loss = loss_of(user, action.number, part);
    }
    seen.add("loss", part, loss);
    (loss * user.share()).backward();
  });
}

}  // namespace

const std::vector<Kind>& pass_kinds() {
  static const std::vector<Kind> all{
      {"train", 20, train},
      {"accumulate", 8, accumulate},
      {"train_two_at_once", 4, train_two_at_once},
      {"train_apart", 4, train_apart},
      {"train_promised", 4, train_promised},
      {"train_with_penalty", 2, train_with_penalty},
      {"train_with_autocast", 2, train_with_autocast},
      {"evaluate", 8, evaluate},
      {"evaluate_a_part", 3, evaluate_a_part},
      {"evaluate_on_a_thread", 2, evaluate_on_a_thread},
      {"ask_for_slopes", 2, ask_for_slopes},
      {"fail_in_forward", 2, fail_in_forward},
      {"fail_in_backward", 2, fail_in_backward},
      {"go_back_twice", 2, go_back_twice},
  };
  return all;
}

}  // namespace tessera::testing
