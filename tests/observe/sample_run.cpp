// Writes what two ranks of a short run would: sample_run FOLDER. The clock of rank 1 is 1000 s behind. What is in it is
// known to check_files.py, which reads it.
#include <tessera/flight/clock.h>
#include <tessera/observe/observer.h>
#include <tessera/observe/tracer.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace {

using tessera::ObserveOptions;
using tessera::observe::Observer;

constexpr std::int64_t kBehind = 1000LL * 1000 * 1000 * 1000;

void run_rank(const std::string& folder, int rank) {
  auto options = ObserveOptions().progress("off").trace(folder + "/trace");
  if (rank == 0) options.json(folder + "/log.jsonl").tensorboard(folder + "/board");
  Observer observer(options, {.rank = rank, .num_ranks = 2, .total_steps = 20, .config = "# a run\nlr = 0.5\n"});
  const std::int64_t behind = rank == 0 ? 0 : kBehind;
  observer.tracer()->add_clock({behind, 100});
  const std::int64_t now = tessera::flight::now_ns() - behind;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const std::int64_t start = now + step * 1000;
    observer.tracer()->add_span("forward", start, start + 400);
    tessera::CallRecord call;
    call.operation = "all_reduce";
    call.group = "world";
    call.sequence = static_cast<std::uint64_t>(step);
    call.started_ns = start + 300;
    call.ended_ns = start + 900;
    observer.tracer()->call_ended(call, start + 800, 200);
    observer.record({.step = step,
                     .loss = 4.0 / static_cast<double>(step),
                     .tokens = 1024,
                     .learning_rate = 0.5,
                     .seconds = 0.125,
                     .scalars = {{"validation/loss", 5.0 / static_cast<double>(step)}}});
  }
  observer.close();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string folder = argc == 2 ? argv[1] : ".";
    for (int rank = 0; rank < 2; ++rank) run_rank(folder, rank);
    const std::string trace = folder + "/trace";
    tessera::observe::merge_traces({trace + ".rank0.pftrace", trace + ".rank1.pftrace"}, trace + ".pftrace");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
