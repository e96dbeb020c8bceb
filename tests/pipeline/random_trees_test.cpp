// Random trees of modules on random stages, against one process. A failure prints its seed. To run others:
// TESSERA_RANDOM_PIPELINES=FIRST[+COUNT] pipeline_random_trees_tests
#include <tessera/comm/world.h>
#include <tessera/optim/clip_grad_norm.h>
#include <tessera/pipeline/pipeline.h>
#include <tessera/shard/named_tensors.h>

#include <torch/optim/sgd.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/random_models/dice.h"
#include "fsdp/random_models/random_case.h"
#include "support/require.h"
#include "tensor_parallel/random_trees/random_tree.h"

namespace tessera::testing {
namespace {

using at::Tensor;

constexpr std::uint64_t kNumTrees = 100;
constexpr double kTolerance = 1e-9;
constexpr double kLastBit = 4e-16;
constexpr double kNoise = 1e-4;  // gradients that are zero but for rounding are judged beside those of the model

struct TreeCase {
  std::uint64_t seed = 0;
  int num_ranks = 1;
  int num_micro_batches = 1;
  int num_steps = 2;
  PipelineOptions options;

  std::string text() const {
    std::string words = "seed " + std::to_string(seed) + ", " + std::to_string(num_ranks) + " ranks, " +
                        options.schedule() + ", " + std::to_string(num_micro_batches) + " micro-batches" +
                        (options.dynamic() ? ", dynamic" : "") + ", split";
    for (const std::string& name : options.split()) words += " " + name;
    for (const std::string& name : options.place()) words += ", place " + name;
    return words;
  }
};

/// By name; undefined: there is no such gradient.
using Values = std::map<std::string, Tensor>;

/// How often the gradient of a value, or of a parameter, is added to, at most. Of two terms the order does not matter.
int most_terms(const Tensor& loss) {
  std::map<std::pair<const torch::autograd::Node*, std::uint32_t>, int> terms;
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> next{loss.grad_fn().get()};
  int most = 0;
  while (!next.empty()) {
    const auto* const node = next.back();
    next.pop_back();
    if (!node || !seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      most = std::max(most, ++terms[{edge.function.get(), edge.input_nr}]);
      next.push_back(edge.function.get());
    }
  }
  return most;
}

struct Expected {
  Values values;
  /// One micro-batch, and gradients of two terms at most: nothing is added in another order.
  bool is_exact = true;
};

TreeCase make_tree_case(std::uint64_t seed) {
  Dice dice(seed + 5'000'011);
  TreeCase one;
  one.seed = seed;
  const auto tree = make_random_tree(seed);
  one.num_ranks = static_cast<int>(1 + dice.below(3));
  one.num_micro_batches = static_cast<int>(dice.chance(50) ? 1 : 2 + dice.below(4));
  one.options.schedule(dice.pick(
      std::vector<std::string>{"sequential", "round_robin", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}));
  one.options.dynamic(dice.chance(70)).init_sync(dice.chance(70)).receive_ahead(dice.below(4));
  const int num_stages =
      one.num_ranks * (one.options.schedule() == "interleaved" || one.options.schedule() == "zb-v" ? 2 : 1);
  std::vector<std::string> names;
  for (const auto& item : tree->named_modules("", true)) {
    if (!item.key().empty()) names.push_back(item.key());
  }
  const auto needed = static_cast<std::size_t>(num_stages) - 1;
  if (dice.chance(80) && names.size() >= needed) {
    std::set<std::size_t> places;
    while (places.size() < needed) places.insert(static_cast<std::size_t>(dice.below(static_cast<int>(names.size()))));
    std::vector<std::string> split;
    for (const std::size_t place : places) split.push_back(names[place]);
    one.options.split(split);
  }
  const std::vector<std::string> parameters = parameters_of(*tree).names;
  if (dice.chance(20) && !parameters.empty()) {
    one.options.place({dice.pick(parameters) + ": " + std::to_string(dice.below(num_stages))});
  }
  return one;
}

void note_gradients(const Node& model, const std::string& when, Values& values, bool only_defined) {
  const NamedTensors parameters = parameters_of(model);  // each once, though several modules may hold it
  for (std::size_t i = 0; i < parameters.names.size(); ++i) {
    const Tensor& gradient = parameters.tensors[i].grad();
    if (gradient.defined() || !only_defined) {
      values["gradient of " + parameters.names[i] + when] = gradient.defined() ? gradient.clone() : Tensor();
    }
  }
}

Expected train_alone(const TreeCase& one, bool may_recompute) {
  const NodePtr model = make_random_tree(one.seed);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  Expected expected{{}, one.num_micro_batches == 1};
  Values& values = expected.values;
  for (int step = 0; step < one.num_steps; ++step) {
    const std::string when = " in step " + std::to_string(step);
    optimizer.zero_grad();
    Tensor sum = torch::zeros({}, torch::kDouble);
    for (int micro = 0; micro < one.num_micro_batches; ++micro) {
      Batch batch = make_batch(step, 0, micro);
      batch.may_recompute = may_recompute;
      const Tensor loss = loss_of(*model, {}, batch) / one.num_micro_batches;
      expected.is_exact = expected.is_exact && loss.requires_grad() && most_terms(loss) <= 2;
      if (loss.requires_grad()) loss.backward();
      sum = sum + loss.detach();
    }
    values["loss" + when] = sum;
    note_gradients(*model, when, values, false);
    optimizer.step();
  }
  const NamedTensors state = state_of(*model);
  for (std::size_t i = 0; i < state.names.size(); ++i) values[state.names[i]] = state.tensors[i].detach().clone();
  return expected;
}

Values train_in_stages(const TreeCase& one, const World& world) {
  const NodePtr model = make_random_tree(one.seed);
  if (world.rank() > 0 && one.options.init_sync()) {
    // What rank 0 broadcasts at the start must replace this.
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : model->parameters()) parameter.fill_(100 + world.rank());
  }
  const Pipeline pipe = pipeline(std::shared_ptr<torch::nn::Module>(model), world, one.options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kLearningRate).momentum(0.9));
  Values values;
  for (int step = 0; step < one.num_steps; ++step) {
    const std::string when = " in step " + std::to_string(step);
    optimizer.zero_grad();
    std::vector<Batch> batches;
    for (int micro = 0; micro < one.num_micro_batches; ++micro) {
      batches.push_back(make_batch(step, 0, micro));
      batches.back().may_recompute = true;
    }
    PipelineBatch batch;
    batch.num_micro_batches = one.num_micro_batches;
    batch.loss = [&](int i) { return loss_of(*model, {}, batches[static_cast<std::size_t>(i)]); };
    batch.tensors = [&](int i) {
      const Batch& its = batches[static_cast<std::size_t>(i)];
      return std::vector{its.x, its.ids, its.switches};
    };
    batch.weights.assign(batches.size(), 1);
    values["loss" + when] = pipe.run(batch, true);
    note_gradients(*model, when, values, true);
    optimizer.step();
  }
  for (const StateSlice& slice : pipe.state_slices()) {
    if (slice.slice.is_whole()) values[slice.name] = slice.values.clone();
  }
  return values;
}

double largest_of(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.to(torch::kDouble).abs().max().item<double>() : 0;
}

/// Words of refusals that a random model may meet.
bool is_refused(const std::string& words) {
  for (const char* const known :
       {"dynamic(true)", "the loss is a value of stage", "that no parameter has part in", "which stage",
        "reads it when other micro-batches", "requires a gradient and is none", "to a tensor that every rank has",
        "write to a copy", "reads values that a stage", "layers for a pipeline of"}) {
    if (words.find(known) != std::string::npos) return true;
  }
  return false;
}

struct Tally {
  int equal = 0;
  int equal_bits = 0;  // of those: in every bit
  int exact = 0;       // of all: nothing is added in another order
  int exact_in_all_bits = 0;
  std::map<std::string, int> refused;
};

void check(std::uint64_t seed, Tally& tally) {
  const TreeCase one = make_tree_case(seed);
  const std::string about = one.text() + "\n" + make_random_tree(seed)->text();
  Expected alone;
  try {
    alone = train_alone(one, /*may_recompute=*/true);
    // Only without recomputation is all of the graph there to be counted.
    alone.is_exact = train_alone(one, /*may_recompute=*/false).is_exact;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "one process alone: " << error.what() << "\n" << about;
    return;
  }
  const Values& expected = alone.values;
  double scale = 0;
  for (const auto& entry : expected) scale = std::max(scale, largest_of(entry.second));
  std::mutex mutex;
  std::set<std::string> seen;
  std::atomic<bool> is_equal = true;
  try {
    run_threads(one.num_ranks, [&](const World& world) {
      const Values found = train_in_stages(one, world);
      for (const auto& [name, value] : found) {
        const auto known = expected.find(name);
        require(known != expected.end() && known->second.defined(), "one process has no " + name);
        const Tensor wanted = known->second.flatten();
        const double difference = largest_of(value.flatten().to(torch::kDouble) - wanted.to(torch::kDouble));
        const double tolerance = alone.is_exact ? kLastBit : kTolerance;
        const double allowed = tolerance * std::max(largest_of(wanted), kNoise * scale);
        require(difference <= allowed, name + " differs by " + std::to_string(difference * 1e12) + "e-12" +
                                           (alone.is_exact ? ", and nothing is added in another order" : ""));
        is_equal = is_equal && difference == 0;
      }
      const std::lock_guard lock(mutex);
      for (const auto& entry : found) seen.insert(entry.first);
    });
  } catch (const std::exception& error) {
    const std::string words = error.what();
    if (is_refused(words)) {
      ++tally.refused[words.substr(0, 60)];
      return;
    }
    ADD_FAILURE() << words.substr(0, words.find("\nException raised from")) << "\n" << about;
    return;
  }
  for (const auto& [name, value] : expected) {
    if (value.defined() && !seen.contains(name)) ADD_FAILURE() << "no rank has " << name << "\n" << about;
  }
  ++tally.equal;
  tally.equal_bits += is_equal ? 1 : 0;
  tally.exact += alone.is_exact ? 1 : 0;
  tally.exact_in_all_bits += alone.is_exact && is_equal ? 1 : 0;
}

TEST(RandomTrees, TrainInStagesAsInOneProcess) {
  const char* const text = std::getenv("TESSERA_RANDOM_PIPELINES");
  std::uint64_t first = 0;
  std::uint64_t count = kNumTrees;
  if (text) {
    std::size_t end = 0;
    const std::string words = text;
    first = std::stoull(words, &end);
    count = end < words.size() ? std::stoull(words.substr(end + 1)) : 1;
  }
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) check(seed, tally);
  std::printf("%d equal, %d of them in every bit; of %d in which nothing is added in another order: %d\n", tally.equal,
              tally.equal_bits, tally.exact, tally.exact_in_all_bits);
  EXPECT_GE(10 * tally.exact_in_all_bits, 9 * tally.exact);
  for (const auto& [words, times] : tally.refused) std::printf("%d refused: %s...\n", times, words.c_str());
  if (count >= kNumTrees) EXPECT_GT(tally.equal, static_cast<int>(count / 2)) << "most models can be trained";
}

}  // namespace
}  // namespace tessera::testing
