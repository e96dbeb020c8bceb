// One rank of a training in which the last rank is three times slower; rank 0 writes the run as one JSON line.
//   bench_staleness MODE MAX_STALENESS RATE SEED BATCHES STEP_MS COUNTER_FILE
// The ranks take batches from one common heap until it is empty, so that every mode sees the same samples. A step lasts
// as long as its option says: what is left after computing is slept.
#include <tessera/comm/world.h>
#include <tessera/core/error.h>
#include <tessera/data_parallel/synchroniser.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <sstream>
#include <thread>

#include "staleness_task.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMomentum = 0.9;
constexpr double kSlowness = 3;
constexpr std::int64_t kMostStaleness = 256;
constexpr std::int64_t kNumPoints = 24;  // of the curve of the loss

struct Settings {
  tessera::SynchroniserOptions options;
  double rate = 0;  // of learning
  std::uint64_t seed = 0;
  std::int64_t num_batches = 0;
  std::chrono::duration<double, std::milli> step{0};
};

struct Point {
  std::int64_t num_samples;
  double seconds;
  double loss;
};

struct Run {
  std::vector<Point> curve;
  std::uint64_t num_updates = 0;
  at::Tensor staleness;  // a row for each rank
  at::Tensor steps;      // of each rank
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

at::Tensor row_of(const tessera::StalenessHistogram& histogram) {
  at::Tensor row = at::zeros({1, kMostStaleness}, at::kLong);
  for (std::size_t s = 0; s < histogram.counts.size(); ++s) {
    const auto place = std::min(static_cast<std::int64_t>(s), kMostStaleness - 1);
    row[0][place] += static_cast<std::int64_t>(histogram.counts[s]);
  }
  return row;
}

Run train(const tessera::World& world, const Settings& settings, bench::SharedCounter& heap) {
  const bench::Task task(settings.seed);
  auto model = task.make_model();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(settings.rate).momentum(kMomentum));
  tessera::Synchroniser sync(model->parameters(), world, settings.options);
  const bool is_slow = world.rank() == world.size() - 1;
  const auto step_time = std::chrono::duration_cast<Clock::duration>(settings.step * (is_slow ? kSlowness : 1.0));

  Run run;
  std::int64_t num_steps = 0;
  world.comm().barrier();
  const auto start = Clock::now();
  const auto note = [&](std::int64_t num_batches) {
    run.curve.push_back({num_batches * bench::kBatchSize, seconds_since(start), task.held_out_loss(model)});
  };
  if (world.rank() == 0) note(0);
  for (auto number = heap.take(); number < settings.num_batches; number = heap.take()) {
    const auto step_end = Clock::now() + step_time;
    const auto batch = task.batch(number);
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model->forward(batch.inputs), batch.labels).backward();
    const auto due = static_cast<std::int64_t>(run.curve.size()) * settings.num_batches / kNumPoints;
    if (world.rank() == 0 && number >= due) note(std::min(heap.num_taken(), settings.num_batches));
    std::this_thread::sleep_until(step_end);
    sync.step(optimizer);
    ++num_steps;
  }
  sync.finish(optimizer);
  note(settings.num_batches);
  run.num_updates = sync.version();
  run.staleness = world.comm().all_gather(row_of(sync.staleness()));
  run.steps = world.comm().all_gather(at::full({1}, num_steps, at::kLong));
  return run;
}

std::string list_of(const at::Tensor& numbers) {
  std::ostringstream text;
  const at::Tensor flat = numbers.contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) text << (i > 0 ? ", " : "") << flat.const_data_ptr<std::int64_t>()[i];
  return "[" + text.str() + "]";
}

/// Without the zeros at its end.
std::string histogram_of(const at::Tensor& row) {
  const at::Tensor used = row.nonzero();
  return list_of(row.narrow(0, 0, used.numel() == 0 ? 0 : used.max().item<std::int64_t>() + 1));
}

void print(const Settings& settings, const Run& run) {
  std::ostringstream curve;
  for (const auto& point : run.curve) {
    curve << (curve.tellp() > 0 ? ", " : "") << "[" << point.num_samples << ", " << point.seconds << ", " << point.loss
          << "]";
  }
  const auto& last = run.curve.back();
  const auto per_second = [&](double count) { return count / last.seconds; };
  std::printf(
      "{\"mode\": \"%s\", \"max_staleness\": %lld, \"rate\": %g, \"seed\": %llu, \"loss\": %.6f, \"seconds\": %.4f, "
      "\"steps_per_second\": %.2f, \"samples_per_second\": %.1f, \"updates_per_second\": %.2f, \"updates\": %llu, "
      "\"steps\": %s, \"staleness\": %s, \"staleness_of_slow\": %s, \"curve\": [%s]}\n",
      settings.options.mode().c_str(), static_cast<long long>(settings.options.max_staleness()), settings.rate,
      static_cast<unsigned long long>(settings.seed), last.loss, last.seconds,
      per_second(static_cast<double>(settings.num_batches)), per_second(static_cast<double>(last.num_samples)),
      per_second(static_cast<double>(run.num_updates)), static_cast<unsigned long long>(run.num_updates),
      list_of(run.steps).c_str(), histogram_of(run.staleness.sum(0)).c_str(),
      histogram_of(run.staleness[run.staleness.size(0) - 1]).c_str(), curve.str().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: bench_staleness MODE MAX_STALENESS RATE SEED BATCHES STEP_MS COUNTER_FILE\n");
    return 2;
  }
  try {
    Settings settings;
    settings.options.mode(argv[1]).max_staleness(std::stoll(argv[2]));
    settings.rate = std::stod(argv[3]);
    settings.seed = std::stoull(argv[4]);
    settings.num_batches = std::stoll(argv[5]);
    settings.step = std::chrono::duration<double, std::milli>(std::stod(argv[6]));
    bench::SharedCounter heap(argv[7]);
    const tessera::World world = tessera::init();
    const Run run = train(world, settings, heap);
    if (world.rank() == 0) print(settings, run);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
