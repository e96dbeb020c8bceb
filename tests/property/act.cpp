#include "property/act.h"

#include <tessera/shard/named_tensors.h>

#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "fsdp/random_models/random_model.h"

namespace tessera::testing {
namespace {

using at::Tensor;

// ---- what programs compute ------------------------------------------------------------------------------------------

Tensor wave(double phase, at::IntArrayRef shape) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + phase).view(shape);
}

Batch make_batch(std::int64_t number, int part) {
  constexpr std::int64_t kBatchSize = 2;
  constexpr std::int64_t kLength = 3;
  Batch batch;
  batch.x = wave(static_cast<double>(number) * 0.9 + part * 2.3, {kBatchSize, kLength, kWidth});
  batch.ids = (torch::arange(kBatchSize * kLength, torch::kLong) * 3 + number + 2 * part)
                  .remainder(kNumWords)
                  .view({kBatchSize, kLength});
  // The same on every rank, and not from batch to batch.
  batch.switches = wave(static_cast<double>(number) * 2.1, {kNumSwitches});
  batch.may_recompute = true;
  return batch;
}

Tensor loss_of(const Tensor& output) { return (output - wave(0.3, output.sizes())).square().mean(); }

Tensor loss_of(User& user, std::int64_t number, int part) {
  const Batch batch = make_batch(number, part);
  return loss_of(user.model().forward(batch.x, batch));
}

Tensor output_of(User& user, std::int64_t number) {
  const Batch batch = make_batch(number, 0);
  user.model().eval();
  Tensor output = user.model().forward(batch.x, batch);
  user.model().train();
  return output;
}

/// Each once.
std::vector<Tensor> parameters_of(User& user) { return tessera::parameters_of(user.model()).tensors; }

Tensor parameter_of(User& user, std::int64_t number) {
  const auto parameters = parameters_of(user);
  return parameters[static_cast<std::size_t>(number) % parameters.size()];
}

/// Buffers that training changes are rank 0's at the next forward, not yet in an evaluation.
int part_of_evaluation(User& user) { return user.model().changes_buffers() ? 0 : Seen::kAll; }

// ---- actions --------------------------------------------------------------------------------------------------------

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

void train_with_penalty(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor output = user.model().forward(batch.x, batch);
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
  if (part_of_evaluation(user) == Seen::kAll) seen.add("output", Seen::kAll, output);
}

void evaluate_a_part(const Action& action, User& user, Seen& seen) {
  const torch::NoGradGuard no_grad;
  const auto children = user.model().children();
  const auto& child = children[static_cast<std::size_t>(action.number) % children.size()];
  auto* const node = dynamic_cast<Node*>(child.get());
  if (!node || node->changes_buffers()) return;
  const Batch batch = make_batch(action.number, 0);
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
  if (part_of_evaluation(user) == Seen::kAll) seen.add("output of a thread", Seen::kAll, output);
}

void ask_for_slopes(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor output = user.model().forward(batch.x, batch);
    const Tensor slope = torch::autograd::grad({output.sum()}, {batch.x}, {}, false, false, true).front();
    if (slope.defined()) seen.add("slope", part, slope);
  });
}

struct Planned : std::runtime_error {
  Planned() : std::runtime_error("planned") {}
};

void clear(User& user) {
  for (const auto& [name, tensor] : user.trained()) tensor.mutable_grad() = Tensor();
  user.model().zero_grad();
}

void fail_in_forward(const Action& action, User& user, Seen& /*seen*/) {
  user.for_each_part([&](int part) {
    const Batch batch = make_batch(action.number, part);
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
    Batch batch = make_batch(action.number, part);
    batch.x.requires_grad_(true);
    batch.may_recompute = false;
    const Tensor start = batch.x * 1;
    if (start.requires_grad()) {
      start.register_hook([](const Tensor& gradient) -> Tensor {
        if (gradient.defined()) throw Planned();
        return gradient;
      });
    }
    const Tensor loss = loss_of(user.model().forward(start, batch));
    try {
      (loss * user.share()).backward();
    } catch (const Planned&) {
    }
  });
  clear(user);
}

void go_back_twice(const Action& action, User& user, Seen& seen) {
  user.for_each_part([&](int part) {
    Batch batch = make_batch(action.number, part);
    batch.may_recompute = false;
    const Tensor loss = loss_of(user.model().forward(batch.x, batch)) * user.share();
    seen.add("loss", part, loss / user.share());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

void step(const Action& /*action*/, User& user, Seen& /*seen*/) { user.optimizer().step(); }

void zero_grad(const Action& action, User& user, Seen& /*seen*/) {
  const bool to_none = action.way % 2 == 0;
  if (action.way / 2 % 2 == 0) {
    user.optimizer().zero_grad(to_none);
  } else {
    user.model().zero_grad(to_none);
  }
}

void clip(const Action& action, User& user, Seen& seen) {
  seen.add("norm", Seen::kAll, torch::full({}, user.clip(action.way % 2 == 0 ? 0.05 : 5), torch::kDouble));
}

void make_optimizer(const Action& action, User& user, Seen& /*seen*/) { user.make_optimizer(action.way); }

void freeze(const Action& action, User& user, Seen& /*seen*/) {
  parameter_of(user, action.number).set_requires_grad(false);
}

void unfreeze(const Action& action, User& user, Seen& /*seen*/) {
  parameter_of(user, action.number).set_requires_grad(true);
}

void write(const Action& action, User& user, Seen& /*seen*/) {
  Tensor parameter = parameter_of(user, action.number);
  const double factor = 0.5 + 0.1 * static_cast<double>(action.number % 9);
  const torch::NoGradGuard no_grad;
  switch (action.way % 7) {
    case 0:
      parameter.data().mul_(factor);
      break;
    case 1:
      parameter.mul_(factor);
      break;
    case 2:
      parameter.detach().copy_(wave(factor, parameter.sizes()));
      break;
    case 3:
      parameter.flatten().narrow(0, 0, 1).fill_(factor);
      break;
    case 4:
      at::_foreach_mul_({parameter}, factor);
      break;
    case 5:
      for (const Tensor& one : parameters_of(user)) one.data().clamp_(-factor, factor);
      break;
    default: {
      const auto whole = user.gather(/*write_back=*/true);
      parameter.data_ptr<double>()[parameter.numel() - 1] = factor;
    }
  }
}

/// LibTorch's archives fill tables of their own: one thread at a time.
std::mutex archive_mutex;

Tensor saved_copy_of(User& user, std::int64_t number) {
  std::stringstream file;
  const std::lock_guard lock(archive_mutex);
  torch::serialize::OutputArchive archive;
  user.model().save(archive);
  archive.save_to(file);
  torch::serialize::InputArchive again;
  again.load_from(file);
  const auto entries = user.model().named_parameters();
  const auto& entry = entries[static_cast<std::size_t>(number) % entries.size()];
  std::string path = entry.key();
  for (auto dot = path.find('.'); dot != std::string::npos; dot = path.find('.')) {
    torch::serialize::InputArchive inner;
    again.read(path.substr(0, dot), inner);
    again = std::move(inner);
    path = path.substr(dot + 1);
  }
  Tensor value;
  again.read(path, value);
  return value;
}

void read(const Action& action, User& user, Seen& seen) {
  const Tensor parameter = parameter_of(user, action.number);
  const torch::NoGradGuard no_grad;
  switch (action.way % 7) {
    case 0:
      seen.add("clone", Seen::kAll, parameter.clone());
      break;
    case 1:
      seen.add("item", Seen::kAll, torch::full({}, parameter.sum().item<double>(), torch::kDouble));
      break;
    case 2:
      seen.add("pointer", Seen::kAll, torch::full({}, parameter.data_ptr<double>()[0], torch::kDouble));
      break;
    case 3:
      seen.add("saved", Seen::kAll, saved_copy_of(user, action.number));
      break;
    case 4: {
      const auto whole = user.gather(/*write_back=*/false);
      seen.add("pointer in gather()", Seen::kAll, torch::full({}, parameter.data_ptr<double>()[0], torch::kDouble));
      break;
    }
    case 5: {
      std::ostringstream text;
      text << parameter.flatten().narrow(0, 0, 1);
      seen.add("printed", Seen::kAll, torch::full({}, std::stod(text.str()), torch::kDouble));
      break;
    }
    default:
      for (const auto& [name, value] : user.full_state()) {
        const bool is_buffer = user.model().named_buffers().contains(name);
        // Other ranks' are those of their last batch.
        if (!is_buffer || !user.model().changes_buffers()) seen.add("state " + name, Seen::kAll, value);
      }
  }
}

void keep_a_view(const Action& action, User& user, Seen& /*seen*/) {
  const Tensor parameter = parameter_of(user, action.number);
  user.kept.push_back(action.way % 2 == 0 ? parameter.detach() : parameter.data().flatten());
}

void use_a_view(const Action& action, User& user, Seen& seen) {
  if (user.kept.empty()) return;
  const Tensor& view = user.kept[static_cast<std::size_t>(action.number) % user.kept.size()];
  if (action.way % 2 == 0) {
    seen.add("view", Seen::kAll, view.clone());
  } else {
    const torch::NoGradGuard no_grad;
    view.mul_(0.75);
  }
}

void load(const Action& action, User& user, Seen& /*seen*/) {
  auto state = user.full_state();
  for (auto& [name, value] : state) {
    if (value.is_floating_point()) value = value * 0.9 + 0.01 * static_cast<double>(action.number % 5);
  }
  user.load(state);
}

void hook(const Action& action, User& user, Seen& /*seen*/) {
  const Tensor parameter = parameter_of(user, action.number);
  if (parameter.requires_grad()) parameter.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
}

void open_gather(const Action& action, User& user, Seen& /*seen*/) {
  user.scopes.push_back(user.gather(action.way % 3 == 0));
}

void close_gather(const Action& /*action*/, User& user, Seen& /*seen*/) {
  if (!user.scopes.empty()) user.scopes.pop_back();
}

void resize_buckets(const Action& action, User& user, Seen& /*seen*/) {
  user.resize_buckets(64 + 100 * (action.number % 10));
}

// ---- the table ------------------------------------------------------------------------------------------------------

struct Kind {
  const char* name;
  int weight;
  void (*run)(const Action&, User&, Seen&);
  bool (*fits)(const Config&) = nullptr;
};

bool is_fsdp(const Config& config) { return config.is_fsdp(); }
/// In a vector for each unit, a parameter without a gradient has zeros, as the guide says: only plain SGD takes that
/// for none.
bool trains_parameters(const Config& config) { return config.is_ddp() || config.fsdp.use_orig_params(); }
bool is_ddp(const Config& config) { return config.is_ddp(); }

/// A new thing that users do is a line here.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"train", 20, train},
      {"accumulate", 8, accumulate},
      {"train_two_at_once", 4, train_two_at_once},
      {"train_with_penalty", 2, train_with_penalty},
      {"evaluate", 8, evaluate},
      {"evaluate_a_part", 3, evaluate_a_part},
      {"evaluate_on_a_thread", 2, evaluate_on_a_thread},
      {"ask_for_slopes", 2, ask_for_slopes},
      {"fail_in_forward", 2, fail_in_forward},
      {"fail_in_backward", 2, fail_in_backward},
      {"go_back_twice", 2, go_back_twice},
      {"step", 20, step},
      {"zero_grad", 14, zero_grad},
      {"clip", 4, clip},
      {"make_optimizer", 2, make_optimizer, trains_parameters},
      {"freeze", 2, freeze},
      {"unfreeze", 2, unfreeze},
      {"write", 8, write},
      {"read", 10, read},
      {"keep_a_view", 2, keep_a_view},
      {"use_a_view", 4, use_a_view},
      {"load", 2, load},
      {"hook", 1, hook},
      {"open_gather", 3, open_gather, is_fsdp},
      {"close_gather", 6, close_gather, is_fsdp},
      {"resize_buckets", 2, resize_buckets, is_ddp},
  };
  return all;
}

}  // namespace

void act(const Action& action, User& user, Seen& seen) {
  for (const Kind& kind : kinds()) {
    if (action.kind == kind.name) return kind.run(action, user, seen);
  }
  throw std::invalid_argument("there is no action " + action.kind);
}

Action draw_action(Dice& dice, const Config& config) {
  int total = 0;
  for (const Kind& kind : kinds()) total += !kind.fits || kind.fits(config) ? kind.weight : 0;
  auto left = dice.below(total);
  const auto number = dice.below(1000);
  const auto way = dice.below(1000);
  for (const Kind& kind : kinds()) {
    if (kind.fits && !kind.fits(config)) continue;
    left -= kind.weight;
    if (left < 0) return {kind.name, number, way};
  }
  throw std::logic_error("the weights of actions do not add up");
}

std::string text_of(const Action& action) {
  return action.kind + "(" + std::to_string(action.number) + ", " + std::to_string(action.way) + ")";
}

}  // namespace tessera::testing
