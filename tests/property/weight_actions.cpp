#include <torch/torch.h>

#include <set>
#include <sstream>

#include "property/archives.h"
#include "property/batches.h"
#include "property/kinds.h"

namespace tessera::testing {
namespace {

using at::Tensor;

void freeze(const Action& action, User& user, Seen& /*seen*/) {
  parameter_of(user, action.number).set_requires_grad(false);
}

void unfreeze(const Action& action, User& user, Seen& /*seen*/) {
  parameter_of(user, action.number).set_requires_grad(true);
}

/// As programs do that train two parts of a model in turns.
void swap_frozen(const Action& /*action*/, User& user, Seen& /*seen*/) {
  for (const Tensor& parameter : parameters_of(user)) parameter.set_requires_grad(!parameter.requires_grad());
}

/// With a graph that nobody needs.
void log(const Action& action, User& user, Seen& seen) {
  const Tensor parameter = parameter_of(user, action.number);
  seen.add("logged", Seen::kAll, user.is_here(parameter) ? parameter.abs().sum() : Tensor());
}

/// To real numbers that the host may touch. LibTorch refuses to give one to complex numbers, which on a device nobody
/// would ask for.
bool has_pointer(const Tensor& parameter) { return parameter.device().is_cpu() && !parameter.is_complex(); }

void write(const Action& action, User& user, Seen& /*seen*/) {
  Tensor parameter = parameter_of(user, action.number);
  const bool needs_whole = action.way % 7 == 6;
  const bool is_of_all = action.way % 7 == 5;
  if (!needs_whole && !is_of_all && !user.is_here(parameter)) return;
  if (user.has_stages() && (parameter.dim() == 0 || user.is_cut()) && action.way % 7 == 3) return;  // refused by some
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
      // Not of flatten(): of a parameter that is not in row-major order that is a copy, and a view once it is sharded.
      parameter.narrow(0, 0, 1).fill_(factor);
      break;
    case 4:
      at::_foreach_mul_({parameter}, factor);
      break;
    case 5:
      for (const Tensor& one : parameters_of(user)) {
        if (user.is_here(one)) one.data().clamp_(-factor, factor);
      }
      break;
    default: {
      const auto whole = user.gather(/*write_back=*/true);
      if (!has_pointer(parameter)) {
        while (parameter.dim() > 0) parameter = parameter.select(0, -1);
        parameter.fill_(factor);
        break;
      }
      // The last element, wherever it lies: shards have no gaps.
      std::int64_t last = 0;
      for (std::int64_t d = 0; d < parameter.dim(); ++d) last += (parameter.size(d) - 1) * parameter.stride(d);
      parameter.data_ptr<double>()[last] = factor;
    }
  }
}

Tensor saved_copy_of(User& user, std::int64_t number) {
  const std::string bytes = saved(user.model());
  const auto lock = lock_archives();
  std::istringstream file(bytes);
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

/// By its pointer, where there is one.
Tensor first_of(const Tensor& parameter) {
  if (!has_pointer(parameter)) return parameter.flatten()[0].cpu();
  return torch::full({}, parameter.data_ptr<double>()[0], torch::kDouble);
}

void read(const Action& action, User& user, Seen& seen) {
  const Tensor parameter = parameter_of(user, action.number);
  const torch::NoGradGuard no_grad;
  if (!user.is_here(parameter) && std::set<std::int64_t>{0, 1, 2, 5}.contains(action.way % 7)) {
    return seen.add("of another stage", Seen::kAll, Tensor());
  }
  switch (action.way % 7) {
    case 0:
      seen.add("clone", Seen::kAll, parameter.clone());
      break;
    case 1:
      seen.add("item", Seen::kAll, torch::full({}, parameter.sum().item<double>(), torch::kDouble));
      break;
    case 2:
      seen.add("pointer", Seen::kAll, first_of(parameter));
      break;
    case 3:
      seen.add("saved", Seen::kAll, saved_copy_of(user, action.number));
      break;
    case 4: {
      const auto whole = user.gather(/*write_back=*/false);
      seen.add("pointer in gather()", Seen::kAll, first_of(parameter));
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
  // As many on every rank.
  const bool is_of_a_copy = user.has_stages() && !user.scopes.empty();  // gather()'s, which ends with it
  if (!user.is_here(parameter) || is_of_a_copy) {
    user.kept.emplace_back();
    return;
  }
  // Not flatten(): of a parameter with gaps that is a copy.
  user.kept.push_back(action.way % 2 == 0 ? parameter.detach() : parameter.data().unsqueeze(0));
}

void use_a_view(const Action& action, User& user, Seen& seen) {
  if (user.kept.empty()) return;
  const Tensor& view = user.kept[static_cast<std::size_t>(action.number) % user.kept.size()];
  if (!view.defined() || !user.is_here(view)) return seen.add("view", Seen::kAll, Tensor());
  if (action.way % 2 == 0) {
    seen.add("view", Seen::kAll, view.clone());
  } else {
    // Other stages have copies inside gather(), which do not notice what is written to a view.
    const bool is_lost = user.has_stages() && !user.scopes.empty();
    const torch::NoGradGuard no_grad;
    if (!is_lost) view.mul_(0.75);
    seen.add("view", Seen::kAll, Tensor());
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
  if (!user.is_here(parameter)) return;
  if (parameter.requires_grad()) parameter.register_hook([](const Tensor& gradient) { return gradient * 0.5; });
}

/// Uses the model, so that what is to be refused is refused.
void look(const Action& action, User& user, Seen& seen) {
  Pass pass{{action.number}, {1}};
  pass.trains = false;
  user.for_each_part([&](int part) {
    seen.add("loss", part, user.has_stages() ? user.pass(pass, part) : loss_of(user, action.number, part));
  });
}

/// Saves with torch::save, does something else to the weights, and loads them again.
void load_saved(const Action& action, User& user, Seen& seen) {
  std::string bytes;
  {
    const auto whole = user.gather(/*write_back=*/false);
    bytes = saved(user.model());
  }
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : parameters_of(user)) {
      if (user.is_here(parameter)) parameter.mul_(0.5);
    }
  }
  // A rank has nowhere to put what other stages have.
  auto whole = action.way % 2 == 0 || user.has_stages() ? user.gather(/*write_back=*/true) : nullptr;
  load_into(user.model(), bytes);
  if (user.has_stages()) whole.reset();
  user.drop_old_views();
  look(action, user, seen);
}

/// To another type and back, which gives every parameter other memory.
void cast(const Action& action, User& user, Seen& seen) {
  user.model().to(torch::kFloat);
  user.model().to(torch::kDouble);
  look(action, user, seen);
}

void open_gather(const Action& action, User& user, Seen& /*seen*/) {
  user.scopes.push_back(user.gather(action.way % 3 == 0));
}

void close_gather(const Action& /*action*/, User& user, Seen& /*seen*/) {
  if (!user.scopes.empty()) user.scopes.pop_back();
}

bool has_parts(const Config& config) { return config.is_fsdp() || config.has_stages(); }
/// Module::to(torch::kFloat) makes complex numbers real ones, and stages have no bytes of most of the model.
bool can_be_cast(const Config& config) { return config.oddity != "complex" && config.pp < 2; }

}  // namespace

const std::vector<Kind>& weight_kinds() {
  static const std::vector<Kind> all{
      {"freeze", 2, freeze},
      {"unfreeze", 2, unfreeze},
      {"swap_frozen", 1, swap_frozen},
      {"log", 2, log},
      {"write", 8, write},
      {"read", 10, read},
      {"keep_a_view", 2, keep_a_view},
      {"use_a_view", 4, use_a_view},
      {"load", 2, load},
      {"load_saved", 1, load_saved},
      {"cast", 1, cast, can_be_cast},
      {"hook", 1, hook},
      {"open_gather", 3, open_gather, has_parts},
      {"close_gather", 6, close_gather, has_parts},
  };
  return all;
}

}  // namespace tessera::testing
