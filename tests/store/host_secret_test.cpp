#include <tessera/core/error.h>
#include <tessera/store/host_secret.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::store {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int kPort = 29500;

std::size_t num_entries(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(HostSecret, IsFoundByItsPortWhileItsOwnerLives) {
  const TemporaryFolder folder;
  EXPECT_FALSE(find_host_secret(kPort, folder.path()).has_value());
  {
    const HostSecret published(kPort, folder.path());
    EXPECT_TRUE(find_host_secret(kPort, folder.path()).value() == published.secret());
    EXPECT_FALSE(find_host_secret(kPort + 1, folder.path()).has_value());
  }
  EXPECT_FALSE(find_host_secret(kPort, folder.path()).has_value());
  EXPECT_EQ(num_entries(folder.path()), 0U);
}

TEST(HostSecret, ReplacesWhatAnEarlierJobLeftAndIsNotTakenAwayByIt) {
  const TemporaryFolder folder;
  auto earlier = std::make_unique<HostSecret>(kPort, folder.path());
  const HostSecret later(kPort, folder.path());
  EXPECT_TRUE(find_host_secret(kPort, folder.path()).value() == later.secret());
  earlier.reset();
  EXPECT_TRUE(find_host_secret(kPort, folder.path()).value() == later.secret());
}

TEST(HostSecret, MakesItsFolderPrivate) {
  const TemporaryFolder parent;
  const auto folder = parent.path() / "made";
  const HostSecret published(kPort, folder);
  struct stat found{};
  ASSERT_EQ(lstat(folder.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700U);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ASSERT_EQ(lstat(entry.path().c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600U) << entry.path();
  }
}

TEST(HostSecret, RefusesAFolderThatOthersReach) {
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0755);
  const std::string command = "chmod 700 " + folder.path().string();
  expect_parts(message_of<ConfigError>([&] { HostSecret(kPort, folder.path()); }), {"mode 755", command});
  expect_parts(message_of<ConfigError>([&] { find_host_secret(kPort, folder.path()); }), {"mode 755", command});
}

TEST(HostSecret, RefusesAFolderOfAnotherUser) {
  const TemporaryFolder folder;
  const auto theirs = geteuid() == 0 ? folder.path() : std::filesystem::path("/root");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(theirs.c_str(), 65534, 65534), 0);
  }
  EXPECT_THROW(HostSecret(kPort, theirs), ConfigError);
  EXPECT_THROW(find_host_secret(kPort, theirs), ConfigError);
}

TEST(HostSecret, RefusesAFolderBehindASymbolicLink) {
  const TemporaryFolder folder;
  const auto link = folder.path() / "link";
  symlink(folder.path().c_str(), link.c_str());
  expect_parts(message_of<ConfigError>([&] { HostSecret(kPort, link); }), {"symbolic link", link.string()});
  expect_parts(message_of<ConfigError>([&] { find_host_secret(kPort, link); }), {"symbolic link"});
}

TEST(HostSecret, RefusesASecretBehindASymbolicLink) {
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  const auto target = elsewhere.write("secret", Secret::mint().hex(), 0600);
  symlink(target.c_str(), (folder.path() / "store-29500.secret").c_str());
  expect_parts(message_of<ConfigError>([&] { find_host_secret(kPort, folder.path()); }), {"symbolic link"});
  // Publishing replaces the link, not what it leads to.
  const std::string before = Secret::from_file(target).hex();
  const HostSecret published(kPort, folder.path());
  EXPECT_TRUE(Secret::from_file(target).hex() == before);
  EXPECT_TRUE(find_host_secret(kPort, folder.path()).value() == published.secret());
}

TEST(HostSecret, LiesInTheUsersRuntimeFolderOrInTmp) {
  const TemporaryFolder folder;
  const char* before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
  EXPECT_EQ(host_secret_folder(), folder.path() / "tessera");
  const std::string fallback = "/tmp/tessera-" + std::to_string(geteuid());
  setenv("XDG_RUNTIME_DIR", (folder.path() / "absent").c_str(), 1);
  EXPECT_EQ(host_secret_folder(), fallback);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(host_secret_folder(), fallback);
  if (before != nullptr) setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace tessera::store
