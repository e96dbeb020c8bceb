// Random training programs, each against one process. `tests/property/programs` is how people call this.
//   property_programs --seed S --count N [--ranks R] [--keep 0,3,7]   ranks are threads
//                     [--tp] [--cut-shards]           only those whose ranks share layers; also those of shards, which
//                                                     still have defects
//                     [--pp]                          all models are on the stages of a pipeline
//                     [--files]                       all models in shards have some of it in files
//                     [--device sim]                  ranks have accelerators; of property_programs_on_devices alone
//   property_programs --seed S --count N --processes R --backend B    ranks are processes
//   property_programs --seed S --show | --test [--keep 0,3,7]         what a program does, or a test that does it
// A line for each program: "program 17: 41 done, 3 refused" or "DEFECT in program 17: ...".
#include <tessera/comm/world.h>
#include <tessera/launch/local_job.h>

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <tuple>

#include "property/play.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

using Options = std::map<std::string, std::string>;

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool has_value = i + 1 < argc && std::string(argv[i + 1]).rfind("--", 0) != 0;
    options[name] = has_value ? argv[++i] : "";
  }
  return options;
}

std::uint64_t number_of(const Options& options, const std::string& name, std::uint64_t otherwise) {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : std::stoull(found->second);
}

/// Without what to(device) takes apart in one process too: views, and parameters that share memory.
void put_on_devices(Program& program, const std::string& type) {
  Config& config = program.config;
  config.device_type = type;
  config.in_files.clear();
  config.keeps_views = false;
  if (config.oddity == "view" || config.oddity == "aliases") config.oddity.clear();
}

Program program_of(const Options& options, std::uint64_t seed, int num_ranks) {
  Program program = make_program(
      seed, {num_ranks, options.contains("--cut-shards"), options.contains("--pp"), options.contains("--files")});
  if (options.contains("--device")) put_on_devices(program, options.at("--device"));
  const auto keep = options.find("--keep");
  if (keep == options.end()) return program;
  std::vector<Action> kept;
  std::istringstream list(keep->second);
  for (std::string index; std::getline(list, index, ',');) kept.push_back(program.actions.at(std::stoul(index)));
  program.actions = kept;
  return program;
}

/// Returns 1 for a defect.
int report(const Program& program, const Played& played) {
  if (played.defect.empty()) {
    std::cout << "program " << program.seed << ": " << played.num_done << " done, " << played.num_refused
              << " refused\n"
              << std::flush;
    return 0;
  }
  std::cout << "DEFECT in program " << program.seed << ": " << played.defect << "\n" << std::flush;
  return 1;
}

int run_with_threads(const Options& options) {
  const std::uint64_t first = number_of(options, "--seed", 0);
  int num_failed = 0;
  for (std::uint64_t seed = first; seed < first + number_of(options, "--count", 1); ++seed) {
    const Program program = program_of(options, seed, static_cast<int>(number_of(options, "--ranks", 0)));
    if (options.contains("--tp") && program.config.tp == 1) continue;
    std::cout << "program " << seed << " begins\n" << std::flush;  // who crashes has said where
    Played played;
    try {
      played = play_with_threads(program);
    } catch (const std::exception& error) {
      played.defect = error.what();
    }
    num_failed += report(program, played);
    if (played.defect.find("HANG") != std::string::npos) std::quick_exit(3);  // its threads would never end
  }
  return num_failed == 0 ? 0 : 1;
}

/// The meeting of processes: a file that all of them map.
Meeting::Memory& memory_in(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Meeting::Memory)) != 0) throw std::runtime_error("cannot make " + path);
  void* const memory = mmap(nullptr, sizeof(Meeting::Memory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  return *static_cast<Meeting::Memory*>(memory);
}

/// One rank of a pool that plays one program after another.
int run_as_rank(const Options& options) {
  const World world = init(WorldOptions().timeout(kGroupTimeout).backend(options.at("--backend")));
  if (options.contains("--device")) std::ignore = world.device();  // the current one from here on
  Meeting meeting(memory_in(options.at("--meeting")), world.rank(), world.size());
  const std::uint64_t first = number_of(options, "--seed", 0);
  int num_failed = 0;
  for (std::uint64_t seed = first; seed < first + number_of(options, "--count", 1); ++seed) {
    const Program program = program_of(options, seed, world.size());
    if (world.rank() == 0) std::cout << "program " << seed << " begins\n" << std::flush;
    std::vector<int> everybody;
    for (int rank = 0; rank < world.size(); ++rank) everybody.push_back(rank);
    // Of its own: what one program does to its group is no matter of the next.
    const Played played = play(program, world.comm().split(everybody, "program"), meeting);
    if (world.rank() == 0) num_failed += report(program, played);
  }
  return num_failed == 0 ? 0 : 1;
}

/// MPI starts its processes itself.
std::vector<std::string> mpirun(int num_ranks, std::vector<std::string> command) {
  if (std::string(TESSERA_MPIEXEC).empty()) throw std::runtime_error("this build has no MPI");
  command.insert(command.begin(),
                 {TESSERA_MPIEXEC, "--allow-run-as-root", "--oversubscribe", "-np", std::to_string(num_ranks)});
  return command;
}

int run_with_processes(const Options& options) {
  const TemporaryFolder folder;
  launch::LocalJob job;
  job.num_ranks = static_cast<int>(number_of(options, "--processes", 2));
  job.command = {launch::own_path(), "--meeting", (folder.path() / "meeting").string()};
  for (const auto& [name, value] : options) {
    if (name == "--processes") continue;
    job.command.push_back(name);
    if (!value.empty()) job.command.push_back(value);
  }
  if (options.at("--backend") == "mpi") {
    job.command = mpirun(job.num_ranks, std::move(job.command));
    job.num_ranks = 1;
    job.launcher_variables = false;
    job.variables = {{"OMPI_MCA_btl", "self,vader"}};
  }
  job.timeout = std::chrono::seconds(1800);
  int code = 0;
  for (const auto& result : launch::run(job)) {
    std::cout << result.output;
    code = std::max(code, result.exit_code);
  }
  return code;
}

int run(const Options& options) {
  at::set_num_threads(1);
  if (options.contains("--show") || options.contains("--test")) {
    const Program program =
        program_of(options, number_of(options, "--seed", 0), static_cast<int>(number_of(options, "--ranks", 0)));
    std::cout << (options.contains("--test") ? program.as_test() : program.text());
    return 0;
  }
  if (options.contains("--meeting")) return run_as_rank(options);
  if (options.contains("--processes")) return run_with_processes(options);
  return run_with_threads(options);
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  try {
    return tessera::testing::run(tessera::testing::options_of(argc, argv));
  } catch (const std::exception& error) {
    std::cout << "DEFECT: " << error.what() << "\n";
    return 2;
  }
}
