// What a training that resumes does with a damaged checkpoint. bench/peers/corruption_rank.py does the same with the
// same bytes and protocol.
//   bench_corruption save FOLDER STEP    one of two ranks that save
//   bench_corruption load FOLDER STEP    one process. To each line of its input it loads, and answers with a line of
//                                        JSON: whether that went well, whether the values are those that were saved,
//                                        what was said
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace bench {
namespace {

constexpr int kNumTensors = 64;
constexpr int kNumOfModel = 40;  // the rest is of the optimizer
constexpr std::int64_t kRows = 32;
constexpr std::int64_t kColumns = 64;

/// The rows of one rank of each tensor.
std::vector<tessera::HeldSlice> make_slices(int rank, int size, std::int64_t step) {
  std::vector<tessera::HeldSlice> slices;
  const std::int64_t rows = kRows / size;
  for (int i = 0; i < kNumTensors; ++i) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step * kNumTensors + i));
    const at::Tensor whole = at::zeros({kRows, kColumns}).normal_(0, 1, generator);
    const auto slice = tessera::Slice::whole({kRows, kColumns}).narrow(0, {rank * rows, rows});
    const std::string group = i < kNumOfModel ? "model" : "optimizer";
    slices.push_back({{"w" + std::to_string(i), slice, whole.narrow(0, rank * rows, rows).clone()}, group});
  }
  return slices;
}

void save(const std::string& folder, std::int64_t step) {
  const tessera::World world = tessera::init();
  tessera::CheckpointFolder checkpoints(folder, world);
  const auto report = checkpoints.save(step, {make_slices(world.rank(), world.size(), step), {}});
  if (!report.saved) throw tessera::StorageError(report.error);
}

std::string json_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    const bool is_plain = letter >= ' ' && letter <= '~';
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += is_plain ? letter : '?';
  }
  return quoted + "\"";
}

void answer(const std::filesystem::path& step, const std::vector<tessera::HeldSlice>& expected) {
  std::vector<tessera::HeldSlice> found = expected;
  for (tessera::HeldSlice& slice : found) slice.values = at::zeros_like(slice.values);
  bool is_same = true;
  std::string error;
  try {
    read_slices(tessera::SavedStep(step), found);
    for (std::size_t i = 0; i < found.size(); ++i) is_same = is_same && at::equal(found[i].values, expected[i].values);
  } catch (const std::exception& fault) {
    error = fault.what();
  }
  std::printf("{\"variant\": \"load\", \"loaded\": %s, \"same\": %s, \"error\": %s}\n",
              error.empty() ? "true" : "false", is_same ? "true" : "false", json_text(error).c_str());
  std::fflush(stdout);
}

void load(const std::filesystem::path& folder, std::int64_t step) {
  const auto expected = make_slices(0, 1, step);
  for (std::string line; std::getline(std::cin, line);) answer(folder / tessera::step_folder_name(step), expected);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 3 || (arguments[0] != "save" && arguments[0] != "load")) {
    std::fprintf(stderr, "usage: bench_corruption save|load FOLDER STEP\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    (arguments[0] == "save" ? bench::save(arguments[1], std::stoll(arguments[2]))
                            : bench::load(arguments[1], std::stoll(arguments[2])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
