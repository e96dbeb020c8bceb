#include "launch/process.h"

#include <gtest/gtest.h>

#include "support/error_message.h"
#include "support/temporary_file.h"

namespace tessera::launch {
namespace {

TEST(FindProgram, SearchesPathForNamesOnly) {
  EXPECT_TRUE(find_program("sh").path.ends_with("/sh"));
  EXPECT_EQ(find_program("/bin/sh").path, "/bin/sh");
  const ProgramPath missing = find_program("./sh");
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_TRUE(missing.path.empty());
}

TEST(FindProgram, SaysWhatIsWrongWithAFile) {
  const testing::TemporaryFile script("echo\n");
  const ProgramPath refused = find_program(script.path());
  EXPECT_EQ(refused.exit_code, 126);
  testing::expect_parts(refused.fault, {script.path(), "not executable", "chmod"});
  EXPECT_EQ(find_program("/usr").exit_code, 126);
  testing::expect_parts(find_program("no_such_program").fault, {"no_such_program", "PATH"});
}

}  // namespace
}  // namespace tessera::launch
