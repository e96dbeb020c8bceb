// LibTorch and MPI, as tessera-torch reports them: this program is linked with neither.
#include <tessera/core/error.h>
#include <tessera/launch/local_job.h>

#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "tessera/doctor/checks.h"

namespace tessera::doctor {
namespace {

std::string find_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = folder + "/" + program;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

/// The line of the output that is JSON; libraries may have written other lines.
std::optional<nlohmann::json> facts_in(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) continue;
    auto facts = nlohmann::json::parse(line, nullptr, false);
    if (facts.is_object()) return facts;
  }
  return std::nullopt;
}

launch::RankResult run_facts(const std::string& program) {
  launch::LocalJob job;
  job.command = {program, "facts"};
  job.launcher_variables = false;
  job.timeout = std::chrono::seconds(60);
  return launch::run(job).at(0);
}

Checks unusable(const std::string& program, const launch::RankResult& result) {
  std::string last;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) last = line.empty() ? last : line;
  return {{"LibTorch", Health::kFail,
           program + " ended with code " + std::to_string(result.exit_code) + ": " + (last.empty() ? "no word" : last),
           "build or install it with the LibTorch of this machine, and see that it finds its libraries (ldd)"}};
}

Check mpi(const nlohmann::json& facts) {
  const std::string mpirun = find_on_path("mpirun");
  if (!facts.at("backends").at("mpi").get<bool>()) return {"MPI", Health::kOk, "not compiled in", ""};
  const std::string version = facts.at("mpi_version");
  Check check{"MPI", Health::kOk, version + (mpirun.empty() ? "" : "; " + mpirun), ""};
  if (mpirun.empty()) {
    check.health = Health::kWarn;
    check.found += "; no mpirun on PATH";
    check.advice = "put its bin folder on PATH; tessera run needs no MPI";
  }
  return check;
}

}  // namespace

Checks check_software(const std::string& torch_program) {
  if (access(torch_program.c_str(), X_OK) != 0) {
    return {{"LibTorch", Health::kWarn, "unknown: " + torch_program + " is not there",
             "build or install it (target tessera_app)"}};
  }
  const launch::RankResult result = run_facts(torch_program);
  const auto facts = facts_in(result.output);
  if (result.exit_code != 0 || !facts) return unusable(torch_program, result);
  try {
    std::string backends;
    for (const auto& [name, is_in] : facts->at("backends").items()) {
      if (is_in.get<bool>()) backends += (backends.empty() ? "" : ", ") + name;
    }
    return {{"LibTorch", Health::kOk,
             facts->at("libtorch").get<std::string>() + ", " + std::to_string(facts->at("num_threads").get<int>()) +
                 " threads, " + facts->at("cpu_capability").get<std::string>(),
             ""},
            {"backends", Health::kOk, backends, ""},
            mpi(*facts)};
  } catch (const nlohmann::json::exception&) {
    return {{"LibTorch", Health::kFail, torch_program + " is of another version of Tessera",
             "install tessera and tessera-torch together"}};
  }
}

}  // namespace tessera::doctor
