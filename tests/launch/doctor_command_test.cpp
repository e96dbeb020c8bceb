#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/error_message.h"
#include "tessera_command.h"

namespace tessera::testing {
namespace {

/// `tessera` in a folder of its own, beside a tessera-torch that the test writes.
class Doctor {
 public:
  explicit Doctor(const std::string& torch_script) {
    std::filesystem::copy_file(TESSERA_CLI, folder_.file("tessera"));
    if (torch_script.empty()) return;
    std::ofstream(folder_.file("tessera-torch")) << "#!/bin/sh\n" << torch_script << "\n";
    std::filesystem::permissions(folder_.file("tessera-torch"), std::filesystem::perms::owner_all);
  }
  TesseraCommand run(const std::vector<std::string>& arguments, const std::string& path = "/usr/bin:/bin") const {
    return TesseraCommand(arguments, {{"PATH", path}}, folder_.file("tessera"));
  }

 private:
  TemporaryFolder folder_;
};

const char* const kFacts = R"(echo "a warning"
echo '{"libtorch": "2.13.0", "num_threads": 4, "cpu_capability": "AVX2", "mpi_version": "Open MPI v4",
"backends": {"gloo": true, "mpi": true, "nccl": false}}' | tr -d '\n'; echo; [ "$1" = facts ])";

TEST(DoctorCommand, IsContentWithAHealthyMachine) {
  const Doctor doctor(kFacts);
  const auto command = doctor.run({"doctor"});
  EXPECT_EQ(command.exit_code(), 0) << command.output();
  expect_parts(command.output(), {"LibTorch       2.13.0, 4 threads, AVX2", "gloo, mpi\n", "Open MPI v4",
                                  "This machine is ready", "loopback"});
}

TEST(DoctorCommand, FailsWhenLibTorchCannotBeLoaded) {
  const Doctor doctor("echo 'libtorch.so: cannot open shared object file' >&2; exit 127");
  const auto command = doctor.run({"doctor"});
  EXPECT_EQ(command.exit_code(), 1);
  expect_parts(command.output(), {"fail  LibTorch", "ended with code 127", "cannot open shared object", "ldd",
                                  "This machine is not ready; 1 check fails"});
}

TEST(DoctorCommand, FailsOnFactsOfAnotherVersion) {
  const Doctor doctor("echo '{\"other\": 1}'");
  const auto command = doctor.run({"doctor"});
  EXPECT_EQ(command.exit_code(), 1);
  expect_parts(command.output(), {"another version"});
}

TEST(DoctorCommand, OnlyWarnsOfWhatIsNotInstalled) {
  const Doctor alone("");
  const auto without_torch = alone.run({"doctor"});
  EXPECT_EQ(without_torch.exit_code(), 0);
  expect_parts(without_torch.output(), {"warn  LibTorch", "tessera_app"});
  const Doctor doctor(kFacts);
  const TemporaryFolder bin;
  for (const char* program : {"sh", "tr"}) {
    std::filesystem::create_symlink(std::string("/usr/bin/") + program, bin.path() / program);
  }
  const auto without_mpirun = doctor.run({"doctor"}, bin.path());
  EXPECT_EQ(without_mpirun.exit_code(), 0);
  expect_parts(without_mpirun.output(), {"warn  MPI", "no mpirun on PATH"});
}

TEST(DoctorCommand, PrintsJson) {
  const Doctor doctor(kFacts);
  const auto command = doctor.run({"doctor", "--json"});
  const auto json = nlohmann::json::parse(command.output(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << command.output();
  EXPECT_EQ(json.at("ready"), true);
  EXPECT_GT(json.at("checks").size(), 15U);
}

}  // namespace
}  // namespace tessera::testing
