#include "property/play.h"

#include <tessera/comm/world.h>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <tuple>

#include "property/act.h"
#include "property/pipeline_user.h"
#include "property/refusals.h"
#include "property/user.h"
#include "support/slice_elements.h"

namespace tessera::testing {
namespace {

using at::Tensor;

// Gradients that are zero but for rounding, as of a bias before a BatchNorm, are judged beside those of the model.
constexpr double kNoise = 1e-4;
constexpr double kLeastScale = 1e-3;
// What is rounded off, beside 1 in the numbers compared. Each step of an optimizer may double it: Adam divides by roots
// of small numbers. The smallest defect that was met is of 1e-5.
constexpr double kTolerance = 1e-9;
constexpr double kToleranceAtMost = 1e-7;

/// How an action went.
struct Outcome {
  enum class Kind { kDone, kRefused, kFailed } kind = Kind::kDone;
  std::string text;

  std::string packed() const { return std::to_string(static_cast<int>(kind)) + text; }
  static Outcome unpacked(const std::string& packed) {
    return {static_cast<Kind>(packed.front() - '0'), packed.substr(1)};
  }
};

Outcome outcome_of(const std::function<void()>& run) {
  try {
    run();
    return {};
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return {is_refusal(error) ? Outcome::Kind::kRefused : Outcome::Kind::kFailed,
            text.substr(0, text.find("\nException raised"))};
  }
}

std::string difference_of(const Tensor& where_it_is, const Tensor& expected, double scale, double tolerance) {
  const Tensor found = where_it_is.cpu();
  if (found.sizes() != expected.sizes()) {
    std::ostringstream text;
    text << "has the shape " << found.sizes() << ", expected " << expected.sizes();
    return text.str();
  }
  if (found.numel() == 0 || at::equal(found, expected)) return "";
  const double difference = (found.to(torch::kDouble) - expected.to(torch::kDouble)).abs().max().item<double>();
  if (difference <= tolerance * scale) return "";
  std::ostringstream text;
  text << "differs by " << difference << " (scale " << scale << "): found " << found.flatten()[0].item<double>()
       << "..., expected " << expected.flatten()[0].item<double>() << "...";
  return text.str();
}

std::map<std::string, Tensor> buffers_of(const torch::nn::Module& model) {
  std::map<std::string, Tensor> buffers;
  for (const auto& entry : model.named_buffers()) buffers[entry.key()] = entry.value();
  return buffers;
}

class Judge {
 public:
  Judge(const Program& program, const Communicator& comm, Meeting& meeting)
      : program_(program), comm_(comm), meeting_(meeting), config_(program.config) {}

  Played run() {
    begin();
    if (!played_.defect.empty() || is_over_) return played_;
    both([](User& user) { user.make_optimizer(0); });
    note_flags();
    first_flags_ = flags_;
    for (std::size_t i = 0; i < program_.actions.size() && played_.defect.empty(); ++i) {
      step(program_.actions[i], "action " + std::to_string(i) + ", " + text_of(program_.actions[i]));
      if (is_over_) break;
    }
    both([](User& user) { user.scopes.clear(); });
    return played_;
  }

 private:
  void begin() {
    Outcome outcome = outcome_of([&] { ranked_ = make_on_rank(program_.seed, config_, comm_); });
    if (outcome.kind == Outcome::Kind::kRefused && !config_.is_plain() &&
        objection_to(outcome.text, {}, config_, {}).empty()) {
      ++played_.num_refused;
      config_.make_plain();
      outcome = outcome_of([&] { ranked_ = make_on_rank(program_.seed, config_, comm_); });
    }
    if (outcome.text.find(kNoCutFits) != std::string::npos) {
      ++played_.num_refused;
      is_over_ = true;
    }
    settle(outcome.kind == Outcome::Kind::kDone || is_over_ ? "" : outcome.text, "the beginning");
    if (is_over_) return;
    alone_ = make_alone(program_.seed, config_);
    // Who makes a model draws random numbers, and threads draw from one generator.
    meeting_.exchange("");
  }

  void both(const std::function<void(User&)>& run) {
    run(*alone_);
    run(*ranked_);
  }

  void step(const Action& action, const std::string& where) {
    Seen found;
    const Outcome mine = outcome_of([&] { act(action, *ranked_, found); });
    has_moved_ = has_moved_ || is_one_of(action, {"cast", "load_saved"});
    std::vector<Outcome> all;
    for (const std::string& packed : meeting_.exchange(mine.packed())) all.push_back(Outcome::unpacked(packed));
    std::string defect;
    const bool same = std::all_of(all.begin(), all.end(), [&](const Outcome& one) { return one.kind == mine.kind; });
    if (!same && config_.has_stages() && may_differ(action, all)) {
      ++played_.num_refused;
      is_over_ = true;
    } else if (!same) {
      defect = "ranks differ:";
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        defect += "\n    rank " + std::to_string(rank) + ": " +
                  (all[rank].kind == Outcome::Kind::kDone ? "done" : all[rank].text);
      }
    } else if (mine.kind == Outcome::Kind::kRefused) {
      ++played_.num_refused;
      defect = objection_to(mine.text, action, config_, circumstances());
      if (!defect.empty()) defect += ": " + mine.text;
    } else {
      defect = compare_with_one_process(action, mine, found);
      if (mine.kind == Outcome::Kind::kDone) ++played_.num_done;
    }
    // Such a model is of no use any more, nor is a group whose ranks waited for one that failed in its own words.
    const bool is_dead = std::any_of(all.begin(), all.end(), [](const Outcome& one) {
      // Ours, and Gloo's words for it.
      const auto says = [&one](const char* words) { return one.text.find(words) != std::string::npos; };
      const bool has_waited = says("not done after") || says("Timed out waiting") || says("Application timeout");
      return (one.kind == Outcome::Kind::kFailed && has_waited) || says("was given other memory") ||
             says("a step of this pipeline has failed before");
    });
    is_over_ = is_over_ || is_dead || (action.kind == "cast" && mine.kind == Outcome::Kind::kRefused);
    if (defect.empty() && mine.kind != Outcome::Kind::kDone && !is_over_) {
      defect = unless_it_moved(outcome_of([&] { recover(action, mine.text); }));
    }
    // Rounding to another type makes small differences large.
    if (defect.empty() && action.kind == "cast" && mine.kind == Outcome::Kind::kDone && !is_over_) {
      defect = unless_it_moved(outcome_of([&] { alone_->load(ranked_->full_state()); }));
    }
    if (is_one_of(action, {"step", "step_with_scaler", "step_stages_with_scaler", "train_uneven"})) ++num_steps_;
    if (is_one_of(action, {"freeze", "unfreeze", "swap_frozen"})) changed_flags_ = true;
    // The same when other actions are left out.
    const bool looks = (7 * action.number + action.way) % 5 < 2;
    // What is written inside gather() comes to the shards when that ends.
    if (defect.empty() && looks && !is_over_ && !circumstances().is_whole) defect = look_at_what_is_held();
    settle(defect, where);
  }

  /// Stages have other parameters, so a call that asks nobody may be refused by some alone. And a forward that goes
  /// another way is noticed where it is computed, when others wait for what that rank would have sent.
  bool may_differ(const Action& action, const std::vector<Outcome>& all) {
    const bool is_local = is_one_of(
        action, {"zero_grad", "step", "read", "reload_optimizer", "call_by_hand", "resize_buckets", "log", "write"});
    const auto says = [&all](const char* words) {
      return std::ranges::any_of(all, [&](const Outcome& one) { return one.text.find(words) != std::string::npos; });
    };
    const bool asks_for_values = says("the forward asks whether two tensors of stage");
    const bool goes_another_way = asks_for_values || says("dynamic(true)");
    for (const Outcome& one : all) {
      if (one.kind != Outcome::Kind::kRefused || asks_for_values) continue;
      if (!objection_to(one.text, action, config_, circumstances()).empty()) return false;
    }
    return std::ranges::all_of(all, [&](const Outcome& one) {
      if (one.kind == Outcome::Kind::kRefused) return true;
      if (one.kind == Outcome::Kind::kDone) return is_local;
      return goes_another_way && one.text.find("not done after") != std::string::npos;
    });
  }

  std::string compare_with_one_process(const Action& action, const Outcome& mine, const Seen& found) {
    Seen expected;
    const Outcome alone = outcome_of([&] { act(action, *alone_, expected); });
    if (alone.kind != mine.kind) {
      return alone.kind == Outcome::Kind::kDone ? "fails, in words of LibTorch: " + mine.text
                                                : "fails in one process, but not here: " + alone.text;
    }
    if (mine.kind == Outcome::Kind::kFailed) return "";
    const int part = config_.part_of(comm_.rank());
    std::vector<const Seen::Value*> of_rank;
    for (const Seen::Value& value : expected.values) {
      if (value.part == part || value.part == Seen::kAll) of_rank.push_back(&value);
      if (!value.value.defined()) continue;
      is_over_ = is_over_ || !value.value.isfinite().all().item<bool>() || value.value.abs().max().item<double>() > 1e6;
    }
    if (is_over_) return "";
    if (of_rank.size() != found.values.size()) return "saw another number of things than one process";
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      const Tensor& value = of_rank[i]->value;
      if (!found.values[i].value.defined()) continue;
      // Parameters are printed with few digits.
      const bool is_cast = action.kind == "cast";
      const double allowed = of_rank[i]->what == "printed" ? 1e-3 : is_cast ? 1e-6 : tolerance();
      const double scale = std::max(1.0, value.abs().max().item<double>());
      const auto text = difference_of(found.values[i].value, value, scale, allowed);
      if (!text.empty()) return of_rank[i]->what + " " + text;
    }
    return "";
  }

  std::string look_at_what_is_held() {
    std::string difference;
    const Outcome outcome = outcome_of([&] { difference = compare_what_is_held(); });
    return outcome.kind == Outcome::Kind::kDone ? difference : unless_it_moved(outcome);
  }

  /// What went wrong. A model whose parameters were given other memory may say so whenever it is looked at.
  std::string unless_it_moved(const Outcome& outcome) {
    if (outcome.kind == Outcome::Kind::kDone) return "";
    const auto says = [&](const char* words) { return outcome.text.find(words) != std::string::npos; };
    is_over_ = has_moved_ && (says("was given other memory") || says("refuses what is asked for, and says why"));
    return is_over_ ? "" : outcome.text;
  }

  /// Weights, gradients, and the state of the optimizer.
  std::string compare_what_is_held() {
    std::map<std::string, Piece> expected;
    double largest = 0;
    for (Piece& piece : alone_->pieces()) {
      if (piece.gradient.defined()) largest = std::max(largest, piece.gradient.abs().max().item<double>());
      expected[piece.name] = std::move(piece);
    }
    const auto parameters = ranked_->model().named_parameters();
    for (const Piece& piece : ranked_->pieces()) {
      const Piece& whole = expected.at(piece.name);
      const auto range = piece.slice.as_extent();
      const auto extent = [&](const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        return range ? tensor.narrow(0, range->start, range->size) : elements_of(tensor, piece.slice);
      };
      auto text = compare(piece.values, extent(whole.values), 1);
      if (!text.empty()) return "the weight " + piece.name + " " + text;
      // Handles do not list what is frozen, nor its gradient of before.
      if (!parameters[piece.name].requires_grad()) continue;
      text = compare(piece.gradient, extent(whole.gradient), std::max(kNoise * largest, kLeastScale));
      if (!text.empty()) return "the gradient of " + piece.name + " " + text;
      for (const auto& [name, tensor] : piece.state) {
        const auto found = whole.state.find(name);
        text = compare(tensor, found == whole.state.end() ? Tensor() : extent(found->second), kNoise);
        if (!text.empty()) return "the optimizer's " + name + " of " + piece.name + " " + text;
      }
    }
    return "";
  }

  std::string compare(const Tensor& found, const Tensor& expected, double least_scale) const {
    // Beside others that have one, a parameter without a gradient has zeros.
    if (!expected.defined()) {
      const bool is_zero = !found.defined() || found.abs().max().item<double>() == 0;
      return is_zero ? "" : "is there, and should not be";
    }
    if (!found.defined()) return expected.abs().max().item<double>() == 0 ? "" : "is missing";
    if (expected.numel() == 0) return "";
    const double scale = std::max(least_scale, expected.abs().max().item<double>());
    return difference_of(found, expected, scale, tolerance());
  }

  double tolerance() const { return std::min(std::ldexp(kTolerance, num_steps_), kToleranceAtMost); }

  Circumstances circumstances() {
    Circumstances now;
    now.is_whole = std::any_of(ranked_->scopes.begin(), ranked_->scopes.end(), [](const auto& one) { return one; });
    now.flags_changed = changed_flags_;
    now.has_moved = has_moved_;
    return now;
  }

  void note_flags() {
    for (const auto& entry : alone_->model().named_parameters()) flags_[entry.key()] = entry.value().requires_grad();
  }

  /// What a user does after an error: everything is put as it was, and he goes on.
  void recover(const Action& action, const std::string& text) {
    // Shards of stages are asked for their flags whenever they are made whole, as below.
    if (config_.has_stages() && text.find(" after fully_shard()") != std::string::npos) flags_ = first_flags_;
    both([&](User& user) {
      user.scopes.clear();
      for (auto& entry : user.model().named_parameters()) entry.value().set_requires_grad(flags_.at(entry.key()));
      for (const auto& [name, tensor] : user.trained()) tensor.mutable_grad() = Tensor();
      user.model().zero_grad();
      user.model().train();
      if (changed_flags_ || is_one_of(action, {"step", "step_with_scaler", "step_stages_with_scaler", "train_uneven",
                                               "load_checkpoint", "reload_optimizer"})) {
        user.make_optimizer(0);
      }
      user.begin_scaling();
      // Of other memory, that one process did not come to write.
      if (action.kind == "load_saved") user.kept.clear();
    });
    // What was kept for the next call is said once.
    if (config_.has_stages()) std::ignore = outcome_of([&] { ranked_->full_state(); });
    // Of several writes some may have been done.
    if (is_one_of(action, {"load_saved", "train_uneven", "load_checkpoint", "step", "step_with_scaler",
                           "step_stages_with_scaler", "write", "use_a_view"})) {
      alone_->load(ranked_->full_state());
    }
    if (config_.is_ddp() && (text.find("anew") != std::string::npos || action.kind == "go_back_twice")) {
      ranked_->begin_again();
    }
    // A forward that was refused half way may have changed buffers. As ever, those of rank 0 count.
    // Of a pipeline each stage has its own.
    const auto buffers = config_.has_stages() ? ranked_->full_state() : buffers_of(ranked_->model());
    const torch::NoGradGuard no_grad;
    for (auto& entry : alone_->model().named_buffers()) {
      const Tensor of_first = buffers.at(entry.key()).clone();
      comm_.broadcast(of_first, 0);
      entry.value().copy_(of_first);
    }
  }

  /// The first defect of any rank is everybody's.
  void settle(const std::string& defect, const std::string& where) {
    const auto all = meeting_.exchange(defect);
    for (std::size_t rank = 0; rank < all.size() && played_.defect.empty(); ++rank) {
      if (!all[rank].empty()) played_.defect = where + ": " + all[rank] + " [rank " + std::to_string(rank) + "]";
    }
  }

  const Program& program_;
  const Communicator& comm_;
  Meeting& meeting_;
  Config config_;
  std::unique_ptr<User> alone_;
  std::unique_ptr<User> ranked_;
  std::map<std::string, bool> flags_;
  std::map<std::string, bool> first_flags_;
  int num_steps_ = 0;
  bool changed_flags_ = false;
  bool has_moved_ = false;
  bool is_over_ = false;
  Played played_;
};

}  // namespace

Played play(const Program& program, const Communicator& comm, Meeting& meeting) {
  return Judge(program, comm, meeting).run();
}

Played play_with_threads(const Program& program) {
  const auto memory = std::make_unique<Meeting::Memory>();
  Played played;
  run_threads(
      program.config.num_ranks,
      [&](const World& world) {
        Meeting meeting(*memory, world.rank(), world.size());
        if (!program.config.device_type.empty()) std::ignore = world.device();  // the current one from here on
        Played mine = play(program, world.comm(), meeting);
        if (world.rank() == 0) played = std::move(mine);
      },
      WorldOptions().timeout(kGroupTimeout));
  return played;
}

}  // namespace tessera::testing
