// What recording a collective costs: nanoseconds of each block of calls, one JSON line a block.
//   bench_recording BLOCKS
#include <tessera/flight/recorder.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace {

constexpr int kCallsPerBlock = 100'000;

double nanoseconds_a_call(tessera::flight::Recorder& recorder, tessera::flight::CallStart& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCallsPerBlock; ++i) {
    ++call.sequence;
    recorder.end(recorder.begin(call), false);
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / kCallsPerBlock;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_recording BLOCKS\n");
    return 2;
  }
  // In memory that a launcher keeps, as under `tessera run`.
  const tessera::flight::BlackBox box;
  tessera::flight::Recorder recorder(box.path());
  recorder.introduce(0, 8);
  const std::array<std::int64_t, 4> shape{32, 1024, 16, 64};
  tessera::flight::CallStart call;
  call.group = recorder.add_group("world/data", {0, 1, 2, 3, 4, 5, 6, 7});
  call.operation = "reduce_scatter";
  call.dtype = "BFloat16";
  call.shape = shape;
  call.where = std::source_location::current();
  for (int block = std::stoi(argv[1]); block > 0; --block) {
    std::printf("{\"ns\": %.1f}\n", nanoseconds_a_call(recorder, call));
  }
  return 0;
}
