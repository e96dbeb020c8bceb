// How fast tokens come out of a file, on one core: one JSON line a round and contestant.
//   bench_data FILE ROUNDS
// FILE holds tokens of uint16; `tessera data pack` or bench/training/data.py makes one.
#include <tessera/train/loader.h>
#include <tessera/train/token_dataset.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSequenceLength = 1024;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kNumBatches = 400;
constexpr std::int64_t kTokensPerBatch = kBatch * (kSequenceLength + 1);

/// Million tokens a second.
struct Speed {
  double by_clock;
  double by_core;  ///< by the time that the core worked, all threads together: others do not disturb it
};

/// Of `body`, which handles a batch. A sum of what it returns keeps the compiler honest.
Speed measure(const std::function<std::int64_t()>& body) {
  std::int64_t sum = 0;
  const auto start = Clock::now();
  const std::clock_t worked = std::clock();
  for (std::int64_t i = 0; i < kNumBatches; ++i) sum += body();
  const double core_seconds = static_cast<double>(std::clock() - worked) / CLOCKS_PER_SEC;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (sum == -1) std::printf("\n");
  const double million = static_cast<double>(kNumBatches * kTokensPerBatch) / 1e6;
  return {million / seconds, million / core_seconds};
}

void report(const char* name, Speed speed) {
  std::printf("{\"name\": \"%s\", \"by_clock\": %.1f, \"by_core\": %.1f}\n", name, speed.by_clock, speed.by_core);
}

/// Another seed for each measurement: what the one before it read lies in the caches.
tessera::Sampler sampler_of(const tessera::TokenDataset& dataset, const char* order, std::int64_t seed) {
  return {dataset.size(), 0, 1, tessera::SamplerOptions().order(order).seed(seed).global_batch(kBatch)};
}

Speed read_batches(const tessera::TokenDataset& dataset, const char* order, std::int64_t seed) {
  tessera::Sampler sampler = sampler_of(dataset, order, seed);
  return measure([&] {
    auto part = sampler.next();
    if (!part) part = sampler.next();
    return dataset.windows(part->samples).data_ptr<std::int64_t>()[0];
  });
}

Speed read_through_loader(const tessera::TokenDataset& dataset, std::int64_t seed) {
  tessera::Loader loader(sampler_of(dataset, "shuffled", seed),
                         [&dataset](const tessera::SampleBatch& part) { return dataset.windows(part.samples); });
  return measure([&] {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    return batch->data_ptr<std::int64_t>()[0];
  });
}

/// The bytes that a batch of int64 has, copied from memory to memory: nothing that makes such a batch can be faster.
Speed copy_batches() {
  const std::vector<std::int64_t> source(static_cast<std::size_t>(kTokensPerBatch * kNumBatches), 1);
  std::int64_t next = 0;
  return measure([&] {
    const at::Tensor batch = at::empty({kBatch, kSequenceLength + 1}, at::kLong);
    std::memcpy(batch.data_ptr(), source.data() + next, static_cast<std::size_t>(kTokensPerBatch) * 8);
    next += kTokensPerBatch;
    return batch.data_ptr<std::int64_t>()[0];
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_data FILE ROUNDS\n");
    return 2;
  }
  at::set_num_threads(1);
  const tessera::TokenDataset dataset({tessera::TokenFile::open(argv[1])},
                                      tessera::TokenDatasetOptions().sequence_length(kSequenceLength));
  for (int round = std::stoi(argv[2]); round > 0; --round) {
    report("shuffled", read_batches(dataset, "shuffled", 2 * round));
    report("sequential", read_batches(dataset, "sequential", 0));
    report("loader", read_through_loader(dataset, 2 * round + 1));
    report("memcpy", copy_batches());
  }
  return 0;
}
