// What an operator costs on tensors that are cut: bench_cut_operators ROUNDS, one process, which is rank 0 of two in a
// world in which nothing moves. Each operator acts on a cut tensor and on a plain one of the size of the part, which is
// too small to compute anything; likewise the forward of a GPT that is cut, and of one written by hand. A line of JSON
// with the number of operators in that forward, then one a round, in seconds of the processor. It ends with its input.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/tensor_parallel/tensor_parallel.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/hand_written.h"
#include "tensor/plan.h"

namespace bench {
namespace {

constexpr GptShape kTiny{.width = 8, .heads = 2, .vocabulary = 16, .sequence = 4, .batch = 1};
constexpr int kOperators = 200;  // of one turn
constexpr int kTurns = 40;
constexpr std::int64_t kWidth = 16;

double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Model : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(kWidth, 2 * kWidth));
};

/// What an operator acts on, and what belongs to it.
struct Operands {
  at::Tensor x;       ///< [2, 4, width]: into the layer
  at::Tensor weight;  ///< of the layer
  at::Tensor bias;
  at::Tensor hidden;  ///< out of it
  std::int64_t heads;
};

using Operator = std::pair<std::string, std::function<void(const Operands&)>>;

/// Those of a transformer's layer that move nothing between ranks.
std::vector<Operator> operators() {
  return {{"add", [](const Operands& on) { at::add(on.hidden, on.hidden); }},
          {"mul by a number", [](const Operands& on) { at::mul(on.hidden, 0.5); }},
          {"gelu", [](const Operands& on) { at::gelu(on.hidden, "tanh"); }},
          {"view", [](const Operands& on) { on.hidden.view({2, 4, on.heads, 4}); }},
          {"transpose", [](const Operands& on) { on.hidden.transpose(0, 1); }},
          {"linear by columns", [](const Operands& on) { at::linear(on.x, on.weight, on.bias); }}};
}

struct Pair {
  double cut = 0;
  double plain = 0;
};

/// By turns, and now the one first, now the other: what a machine does slowly changes both alike.
Pair measure(int count, const std::function<void()>& cut, const std::function<void()>& plain) {
  std::vector<double> of_cut;
  std::vector<double> of_plain;
  for (int turn = 0; turn < 2 * kTurns; ++turn) {
    const bool is_cut = turn % 4 == 0 || turn % 4 == 3;
    const double start = seconds();
    for (int i = 0; i < count; ++i) is_cut ? cut() : plain();
    (is_cut ? of_cut : of_plain).push_back((seconds() - start) / count);
  }
  return {median(std::move(of_cut)), median(std::move(of_plain))};
}

/// The same forward twice: of a model that is cut, and of one written by hand.
class Forwards {
 public:
  explicit Forwards(const tessera::World& world)
      : batch_(make_batch(0, kTiny)), model_(make_gpt(kTiny)), hand_written_(model_, kTiny, world.comm()) {
    tessera::tensor_parallel(model_, world, plan_of(kTiny), tessera::TensorParallelOptions().num_checked_inputs(0));
  }

  void cut() { loss_of(model_, batch_); }
  void plain() { hand_written_.loss(batch_); }

  /// Those that the program itself calls.
  int count_operators() {
    num_operators = 0;
    const auto callback = at::RecordFunctionCallback(
                              [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                                if (depth++ == 0) ++num_operators;
                                return nullptr;
                              },
                              [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
                              .scopes({at::RecordScope::FUNCTION});
    const at::CallbackHandle handle = at::addThreadLocalCallback(callback);
    plain();
    at::removeCallback(handle);
    return num_operators;
  }

 private:
  static thread_local int depth;
  static thread_local int num_operators;

  Batch batch_;
  Gpt model_;
  HandWrittenGpt hand_written_;
};

thread_local int Forwards::depth = 0;
thread_local int Forwards::num_operators = 0;

void print(const std::string& name, const Pair& pair, const char* end) {
  std::printf("\"%s\": {\"cut\": %.12f, \"plain\": %.12f}%s", name.c_str(), pair.cut, pair.plain, end);
}

void run(int num_rounds) {
  at::set_num_threads(1);
  const tessera::World world = tessera::fake_world(0, 2);
  const auto model = std::make_shared<Model>();
  const auto parallel = tessera::tensor_parallel(model, world, {{"up", tessera::split_columns()}},
                                                 tessera::TensorParallelOptions().num_checked_inputs(0));
  const at::Tensor x = at::ones({2, 4, kWidth});
  const at::Tensor weight = at::ones({kWidth, kWidth}).requires_grad_();
  const at::Tensor bias = at::ones({kWidth}).requires_grad_();
  const Operands cut{x, model->up->weight, model->up->bias, at::linear(x, model->up->weight, model->up->bias),
                     2 * kWidth / 4};
  const Operands plain{x, weight, bias, at::linear(x, weight, bias), kWidth / 4};
  Forwards forwards(world);
  for (int i = 0; i < 3; ++i) forwards.cut();
  std::printf("{\"forward_operators\": %d}\n", forwards.count_operators());
  for (int round = 0; round < num_rounds; ++round) {
    std::printf("{");
    for (const Operator& one : operators()) {
      print(one.first, measure(kOperators, [&] { one.second(cut); }, [&] { one.second(plain); }), ", ");
    }
    print("forward", measure(1, [&] { forwards.cut(); }, [&] { forwards.plain(); }), "}\n");
    std::fflush(stdout);
  }
  while (std::getchar() != EOF) {
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_cut_operators ROUNDS\n");
    return 2;
  }
  try {
    bench::run(std::stoi(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
