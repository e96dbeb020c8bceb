#include "comm/job_store.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <map>

#include "support/error_message.h"
#include "support/temporary_file.h"

namespace tessera::comm {
namespace {

using store::Secret;
using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFile;

std::optional<Secret> given(const std::map<std::string, std::string>& variables, const std::string& option = "") {
  return given_secret(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      option);
}

TEST(JobSecret, IsNothingWhenNobodyGaveOne) {
  EXPECT_FALSE(given({}).has_value());
  EXPECT_FALSE(given({{"TESSERA_SECRET_FILE", ""}}).has_value());
}

TEST(JobSecret, OfTheLauncherGoesBeforeTheOptionAndTheOptionBeforeTheEnvironmentsFile) {
  const auto launchers = Secret::mint();
  const auto options = Secret::mint();
  const auto users = Secret::mint();
  const TemporaryFile options_file(options.hex());
  const TemporaryFile users_file(users.hex());
  const std::map<std::string, std::string> file = {{"TESSERA_SECRET_FILE", users_file.path()}};
  const std::map<std::string, std::string> both = {{"TESSERA_SECRET_FILE", users_file.path()},
                                                   {"TESSERA_SECRET", launchers.hex()}};
  EXPECT_TRUE(given(file) == users);
  EXPECT_TRUE(given(file, options_file.path()) == options);
  EXPECT_TRUE(given(both, options_file.path()) == launchers);
}

TEST(JobSecret, ThatIsNoneIsRefusedWithTheNameOfTheVariableAndWithoutItsText) {
  const auto message = message_of<ConfigError>([] { given({{"TESSERA_SECRET", "abracadabra"}}); });
  expect_parts(message, {"TESSERA_SECRET", "64 hexadecimal digits"});
  EXPECT_EQ(message.find("abracadabra"), std::string::npos);
  expect_parts(message_of<ConfigError>([] { given({{"TESSERA_SECRET_FILE", "/no/such/file"}}); }), {"/no/such/file"});
}

}  // namespace
}  // namespace tessera::comm
