// One rank of the contest in saving and loading: bench_checkpoint FOLDER. It does what a line of its input asks for,
//   save 1            a save that the caller waits for
//   save_async 1      a save in the background, behind the steps of a training
//   fill 1            makes the step that is loaded
//   load cold 1       a load, after the page cache has lost the files; "load warm 1": after all have been read into it
// and answers with a line of JSON. Between lines it sleeps, so that others can be measured. All ranks get the same
// lines, and share the folder, which exists. bench/peers/checkpoint_rank.py does the same with the same bytes.
#include <tessera/checkpoint/checkpoint_folder.h>
#include <tessera/checkpoint/held_slice.h>
#include <tessera/checkpoint/saved_step.h>
#include <tessera/comm/world.h>
#include <tessera/core/descriptor.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace bench {
namespace {

namespace fs = std::filesystem;

constexpr int kNumTensors = 100;
constexpr std::int64_t kRows = 1024;  // of one rank's part of a tensor
constexpr std::int64_t kColumns = 1024;
constexpr std::int64_t kStepSize = 512;  // of the matrices that a step of the training multiplies
constexpr int kStepsAlone = 150;
constexpr std::int64_t kStep = 20;

struct Answer {
  double seconds = 0;
  double processor = 0;  // seconds of it, where nothing else ran
  double step_alone = 0;
  double step_during = 0;
  double saving = 0;
};

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Answer timed(const std::function<void()>& body) {
  const double began = now(CLOCK_MONOTONIC);
  const double used = now(CLOCK_PROCESS_CPUTIME_ID);
  body();
  return {.seconds = now(CLOCK_MONOTONIC) - began, .processor = now(CLOCK_PROCESS_CPUTIME_ID) - used};
}

void for_each_file(const fs::path& folder, const std::function<void(int)>& use) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const tessera::Descriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    use(file.get());
  }
}

/// Takes the files out of the page cache.
void forget(const fs::path& folder) {
  for_each_file(folder, [](int file) {
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  });
}

/// Reads the files into the page cache: a load of ours may leave it as it is.
void fetch(const fs::path& folder) {
  std::vector<char> piece(std::size_t{4} << 20);
  for_each_file(folder, [&piece](int file) {
    while (read(file, piece.data(), piece.size()) > 0) {
    }
  });
}

/// The rows of one rank of each tensor.
std::vector<tessera::HeldSlice> make_slices(const tessera::World& world, bool filled) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(world.rank()));
  const std::int64_t count = kRows * kColumns;
  std::vector<tessera::HeldSlice> slices;
  for (int i = 0; i < kNumTensors; ++i) {
    const at::Tensor values = at::zeros({kRows, kColumns});
    if (filled) values.normal_(0, 1, generator);
    const auto slice = tessera::Slice::extent({world.size() * kRows, kColumns}, {world.rank() * count, count});
    slices.push_back({{"w" + std::to_string(i), slice, values}, "model"});
  }
  return slices;
}

class Rank {
 public:
  explicit Rank(fs::path folder)
      : folder_(std::move(folder)),
        world_(tessera::init(tessera::WorldOptions().timeout(std::chrono::seconds(120)))),
        waited_(folder_, world_),
        background_(folder_, world_, tessera::CheckpointOptions().asynchronous(true)),
        state_{make_slices(world_, true), {}},
        target_(make_slices(world_, false)),
        matrix_(at::rand({kStepSize, kStepSize})) {}

  Answer answer(const std::string& variant) {
    if (variant == "save") return save();
    if (variant == "save_async") return save_behind_steps();
    if (variant == "fill") return fill();
    if (variant == "load cold") return load(true);
    if (variant == "load warm") return load(false);
    throw tessera::ConfigError("unknown: \"" + variant + "\"");
  }

  void finish() { clean(); }

 private:
  static void require(const tessera::SaveReport& report) {
    if (!report.saved) throw tessera::StorageError(report.error);
  }

  /// Without what an earlier turn left, and with a disk that has nothing to do.
  void clean() {
    world_.comm().barrier();
    if (world_.rank() == 0) {
      for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
      sync();
    }
    world_.comm().barrier();
  }

  Answer save() {
    clean();
    return timed([this] { require(waited_.save(kStep, state_)); });
  }

  double seconds_of_a_step() {
    world_.comm().barrier();
    return timed([this] {
             for (int i = 0; i < kStepsAlone; ++i) step();
           }).seconds /
           kStepsAlone;
  }

  Answer save_behind_steps() {
    clean();
    const double before = seconds_of_a_step();
    world_.comm().barrier();
    Answer answer = timed([this] { background_.save(kStep, state_); });
    const fs::path done = folder_ / tessera::step_folder_name(kStep);
    int num_steps = 0;
    answer.saving = timed([&] {
                      for (; !fs::exists(done); ++num_steps) step();
                    }).seconds;
    answer.step_during = answer.saving / std::max(1, num_steps);
    require(background_.wait());
    answer.step_alone = (before + seconds_of_a_step()) / 2;
    return answer;
  }

  Answer fill() {
    save();
    load_target();
    for (int i = 0; i < kNumTensors; ++i) {
      const auto place = static_cast<std::size_t>(i);
      if (!at::equal(target_[place].values, state_.slices[place].values)) {
        throw tessera::InternalError("another state was loaded than was saved");
      }
    }
    return {};
  }

  Answer load(bool is_cold) {
    if (world_.rank() == 0) (is_cold ? forget : fetch)(folder_);
    world_.comm().barrier();
    return timed([this] { load_target(); });
  }

  void load_target() {
    const auto step = waited_.load_newest([this](const tessera::SavedStep& saved) { read_slices(saved, target_); });
    if (!step) throw tessera::StorageError("there is no step to load");
  }

  void step() { at::mm(matrix_, matrix_); }

  fs::path folder_;
  tessera::World world_;
  tessera::CheckpointFolder waited_;
  tessera::CheckpointFolder background_;
  tessera::RankState state_;
  std::vector<tessera::HeldSlice> target_;
  at::Tensor matrix_;
};

void run(const std::string& folder) {
  at::set_num_threads(1);
  Rank rank(folder);
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::string variant = line.substr(0, line.rfind(' '));
    const Answer answer = rank.answer(variant);
    std::printf(
        "{\"variant\": \"%s\", \"seconds\": %.6f, \"processor\": %.6f, \"step_alone\": %.6f, \"step_during\": %.6f, "
        "\"saving\": %.6f}\n",
        variant.c_str(), answer.seconds, answer.processor, answer.step_alone, answer.step_during, answer.saving);
    std::fflush(stdout);
  }
  rank.finish();
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench_checkpoint FOLDER\n");
    return 2;
  }
  try {
    bench::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tessera::exit_code(error);
  }
  return 0;
}
