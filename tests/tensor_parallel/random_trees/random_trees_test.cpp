// Random trees of modules, cut by random plans, against one process. A failure prints its seed, and the lines of its
// plan that it needs. To run others: TESSERA_RANDOM_TREES=FIRST[+COUNT] tensor_parallel_random_trees_tests
#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <string>

#include "tensor_parallel/random_trees/random_tree.h"
#include "tensor_parallel/random_trees/tree_case.h"

namespace tessera::testing {
namespace {

constexpr std::uint64_t kNumTrees = 60;

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = kNumTrees;
};

Seeds wanted_seeds() {
  const char* const text = std::getenv("TESSERA_RANDOM_TREES");
  if (!text) return {};
  std::size_t end = 0;
  const std::string words = text;
  const std::uint64_t first = std::stoull(words, &end);
  return {first, end < words.size() ? std::stoull(words.substr(end + 1)) : 1};
}

/// What went wrong; nullopt: nothing.
std::optional<std::string> fault_of(const TreeCase& one, const TreeResult& expected) {
  try {
    run_threads(one.steps.num_ranks, [&](const World& world) { require_same_when_cut(one, expected, world); });
  } catch (const std::exception& error) {
    const std::string words = error.what();
    return words.substr(0, words.find("\nException raised from"));  // not where in LibTorch
  }
  return std::nullopt;
}

/// Without the lines of the plan that the fault does not need.
TreeCase shrunk(TreeCase one, const TreeResult& expected) {
  for (std::size_t i = 0; i < one.plan.entries().size() && one.plan.entries().size() > 1;) {
    TreeCase smaller = one;
    smaller.plan = {};
    for (std::size_t j = 0; j < one.plan.entries().size(); ++j) {
      const auto& [pattern, split] = one.plan.entries()[j];
      if (j != i) smaller.plan.add(pattern, split);
    }
    const auto fault = fault_of(smaller, expected);
    const bool is_needed = !fault || fault->find("cuts nothing") != std::string::npos;
    if (is_needed) {
      ++i;
    } else {
      one = smaller;
    }
  }
  return one;
}

void check(std::uint64_t seed) {
  const TreeCase one = make_tree_case(seed);
  const std::string tree = make_random_tree(seed)->text();
  try {
    const TreeResult expected = train_tree_alone(one);
    const auto fault = fault_of(one, expected);
    if (!fault) return;
    const TreeCase smaller = shrunk(one, expected);
    ADD_FAILURE() << *fault << "\n"
                  << smaller.text() << "\n"
                  << tree << "alone: TESSERA_RANDOM_TREES=" << seed
                  << "\nwith this plan: " << fault_of(smaller, expected).value_or("nothing, a second time");
  } catch (const std::exception& error) {
    ADD_FAILURE() << "one process alone: " << error.what() << "\n" << one.text() << "\n" << tree;
  }
}

TEST(RandomTrees, TrainCutAsInOneProcess) {
  const Seeds seeds = wanted_seeds();
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) check(seed);
}

}  // namespace
}  // namespace tessera::testing
