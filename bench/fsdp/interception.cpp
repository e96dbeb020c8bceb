// What interception costs: bench_interception ROUNDS, one process. A sharded model of one rank, whose units are always
// whole, with LibTorch's callbacks on and off. A line of JSON with counts, then one a round, in seconds of the
// processor. It ends with its input.
//
// A step of the real shape takes a second and differs from the next by more than what is to be seen. So the operators
// are also those of a model of the same make that is too small to compute anything.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/fsdp/fully_shard.h>
#include <tessera/intercept/watch.h>
#include <tessera/optim/adamw.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

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

#include "gpt/gpt.h"

namespace bench {
namespace {

constexpr GptShape kTiny{.width = 8, .heads = 2, .vocabulary = 16, .sequence = 4, .batch = 1};
constexpr int kOperators = 1'000;  // of one turn
constexpr int kTurns = 40;

double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Training {
 public:
  Training(const tessera::World& world, const GptShape& shape)
      : model_(make_gpt(shape)),
        sharded_(tessera::fully_shard(
            model_, world, tessera::FsdpOptions().auto_wrap(tessera::wrap_by_type<BlockImpl>()).min_num_params(0))),
        optimizer_(sharded_.parameters(), tessera::optim::AdamWOptions(3e-4)),
        batch_(make_batch(0, shape)) {}

  void step() {
    optimizer_.zero_grad();
    loss_of(model_, batch_).backward();
    optimizer_.step();
  }
  at::Tensor parameter() const { return model_->parameters().front(); }

 private:
  Gpt model_;
  tessera::ShardedModel sharded_;
  tessera::optim::AdamW optimizer_;
  Batch batch_;
};

struct OperatorCount : tessera::intercept::Listener {
  void on_use(const tessera::intercept::Use& /*use*/) override {}
  void on_operator(std::string_view /*operator_name*/) override { ++count; }
  int count = 0;
};

int count_operators(Training& training) {
  const auto counter = std::make_shared<OperatorCount>();
  const tessera::intercept::Watch watch({at::empty({1})}, counter, tessera::intercept::Interest::kUsesAndEveryOperator);
  training.step();
  return counter->count;
}

struct Pair {
  double on = 0;
  double off = 0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Medians of `body` with callbacks on and off. By turns, and now the one first, now the other: what a machine does
/// slowly changes both alike.
Pair measure(int num_turns, const std::function<void()>& body) {
  std::vector<double> on;
  std::vector<double> off;
  for (int turn = 0; turn < 2 * num_turns; ++turn) {
    const bool is_on = turn % 4 == 0 || turn % 4 == 3;
    const at::RecordFunctionGuard guard(is_on);
    const double start = seconds();
    body();
    (is_on ? on : off).push_back(seconds() - start);
  }
  return {median(std::move(on)), median(std::move(off))};
}

void print(const char* name, const Pair& pair, double count, const char* end) {
  std::printf("\"%s\": {\"on\": %.12f, \"off\": %.12f}%s", name, pair.on / count, pair.off / count, end);
}

void run(int num_rounds) {
  at::set_num_threads(1);
  const tessera::World world = tessera::init();
  Training real(world, {});
  Training tiny(world, kTiny);
  for (int i = 0; i < 3; ++i) tiny.step();
  real.step();
  const at::Tensor parameter = tiny.parameter();
  const at::Tensor other = parameter.detach().clone();
  at::Tensor out = at::empty_like(other);
  const auto operators_on = [&](const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < kOperators; ++i) at::neg_out(out, tensor);
  };

  std::printf("{\"real_operators\": %d, \"tiny_operators\": %d}\n", count_operators(real), count_operators(tiny));
  std::fflush(stdout);
  for (int round = 0; round < num_rounds; ++round) {
    std::printf("{");
    print("stranger", measure(kTurns, [&] { operators_on(other); }), kOperators, ", ");
    print("parameter", measure(kTurns, [&] { operators_on(parameter); }), kOperators, ", ");
    print("tiny_step", measure(kTurns, [&] { tiny.step(); }), 1, ", ");
    print("real_step", measure(1, [&] { real.step(); }), 1, "}\n");
    std::fflush(stdout);
  }
  while (std::getchar() != EOF) {
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_interception ROUNDS\n");
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
