#include <tessera/core/descriptor.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>

#include <fstream>

#include "launch/process.h"
#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::testing {
namespace {

/// A copy of `tessera` in a folder of its own.
class Copy {
 public:
  Copy() { std::filesystem::copy_file(TESSERA_CLI, folder_.file("tessera")); }

  void put_beside(const std::string& name, const std::string& script) const {
    std::ofstream(folder_.file(name)) << script;
    std::filesystem::permissions(folder_.file(name), std::filesystem::perms::owner_all);
  }

  /// The exit code; what it wrote is then in written().
  int run(const std::vector<std::string>& arguments) const {
    const Descriptor output(open(folder_.file("written").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
    launch::ProcessSpec spec;
    spec.program = folder_.file("tessera");
    spec.arguments = {"tessera"};
    spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
    spec.environment = launch::entries_of(launch::current_environment());
    spec.output = output.get();
    spec.error = output.get();
    int status = 0;
    waitpid(launch::start_process(spec).process, &status, 0);
    return launch::exit_code_of(status);
  }
  std::string written() const { return text_of_file(folder_.file("written")); }
  std::string path(const std::string& name) const { return folder_.file(name); }

 private:
  TemporaryFolder folder_;
};

TEST(TorchCommands, AreThoseOfTheExecutableBesideIt) {
  const Copy copy;
  copy.put_beside("tessera-torch", "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 9\n");
  EXPECT_EQ(copy.run({"bench", "comm", "--ranks", "a b", "--help"}), 9);
  EXPECT_EQ(copy.written(), "bench|comm|--ranks|a b|--help|");
  EXPECT_EQ(copy.run({"reference", "run"}), 9);
}

TEST(TorchCommands, SayWhatIsMissing) {
  const Copy copy;
  EXPECT_EQ(copy.run({"bench"}), 2);
  expect_parts(copy.written(), {"tessera bench", copy.path("tessera-torch"), "No such file", "tessera_app"});
}

TEST(TorchCommands, AreListedInTheHelp) {
  const Copy copy;
  EXPECT_EQ(copy.run({"--help"}), 0);
  expect_parts(copy.written(), {"run ", "bench ", "reference "});
  EXPECT_EQ(copy.run({"no-such-command"}), 2);
}

}  // namespace
}  // namespace tessera::testing
