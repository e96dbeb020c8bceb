#include <tessera/core/error.h>
#include <tessera/store/secret.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <concepts>
#include <new>
#include <ostream>

#include "support/error_message.h"
#include "support/temporary_folder.h"

namespace tessera::store {
namespace {

using testing::expect_parts;
using testing::message_of;
using testing::TemporaryFolder;

std::string digits() { return "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"; }

template <class T>
concept Printable = requires(std::ostream& stream, const T& value) { stream << value; };

TEST(Secret, IsNewEachTime) { EXPECT_FALSE(Secret::mint() == Secret::mint()); }

TEST(Secret, ReadsBackWhatItWrites) {
  const Secret secret = Secret::mint();
  EXPECT_EQ(secret.hex().size(), 64U);
  EXPECT_TRUE(Secret::from_hex(secret.hex()) == secret);
  EXPECT_TRUE(Secret::from_hex(digits()).hex() == digits());
}

TEST(Secret, TakesDigitsOfBothCases) {
  std::string upper = digits();
  for (char& digit : upper) digit = static_cast<char>(std::toupper(static_cast<unsigned char>(digit)));
  EXPECT_TRUE(Secret::from_hex(upper) == Secret::from_hex(digits()));
}

TEST(Secret, DiffersWhereverOneBitDoes) {
  const Secret secret = Secret::from_hex(digits());
  for (std::size_t i = 0; i < digits().size(); ++i) {
    std::string other = digits();
    other[i] = other[i] == '7' ? '6' : '7';
    EXPECT_FALSE(Secret::from_hex(other) == secret) << i;
  }
}

TEST(Secret, RefusesWhatIsNotSixtyFourDigitsAndDoesNotRepeatIt) {
  for (const std::string& text :
       {std::string(), digits().substr(1), digits() + "0", " " + digits().substr(1), digits().substr(0, 63) + "g",
        digits().substr(0, 63) + '\n', "0x" + digits().substr(2)}) {
    const std::string message = message_of<ConfigError>([&] { Secret::from_hex(text); });
    EXPECT_TRUE(text.empty() || message.find(text) == std::string::npos) << message;
    expect_parts(message, {"tessera secret"});
  }
}

TEST(Secret, CannotBePrinted) { EXPECT_FALSE(Printable<Secret>); }

TEST(Secret, LeavesNoBytesBehind) {
  alignas(Secret) std::array<unsigned char, sizeof(Secret)> memory;
  // Read through a volatile pointer: the compiler may else assume that nobody looks at a destroyed object.
  const volatile unsigned char* bytes = memory.data();
  const auto* secret = new (memory.data()) Secret(Secret::from_hex(std::string(64, 'f')));
  ASSERT_EQ(bytes[0], 0xff);
  secret->~Secret();
  for (std::size_t i = 0; i < Secret::kNumBytes; ++i) EXPECT_EQ(bytes[i], 0) << i;
}

TEST(SecretFile, IsReadWithAndWithoutALineEnd) {
  const TemporaryFolder folder;
  EXPECT_TRUE(Secret::from_file(folder.write("plain", digits(), 0600)).hex() == digits());
  EXPECT_TRUE(Secret::from_file(folder.write("line", digits() + "\n", 0400)).hex() == digits());
}

TEST(SecretFile, MustBeClosedToGroupAndOthers) {
  const TemporaryFolder folder;
  for (const mode_t mode : {0640, 0620, 0610, 0604, 0602, 0601, 0644, 0666, 0777}) {
    const auto file = folder.write("secret", digits(), mode);
    std::array<char, 8> octal{};
    std::snprintf(octal.data(), octal.size(), "%03o", mode);
    expect_parts(message_of<ConfigError>([&] { Secret::from_file(file); }),
                 {"mode " + std::string(octal.data()), "chmod 600 " + file.string()});
  }
}

TEST(SecretFile, MustBelongToTheUser) {
  const TemporaryFolder folder;
  auto file = folder.write("secret", digits(), 0600);
  constexpr uid_t kNobody = 65534;
  if (geteuid() == 0) {
    ASSERT_EQ(chown(file.c_str(), kNobody, kNobody), 0);
  } else {
    file = "/etc/passwd";
  }
  expect_parts(message_of<ConfigError>([&] { Secret::from_file(file); }), {"belongs to user", file.string()});
}

TEST(SecretFile, IsCheckedBehindASymbolicLink) {
  const TemporaryFolder folder;
  const auto link = folder.path() / "link";
  symlink(folder.write("secret", digits(), 0600).c_str(), link.c_str());
  EXPECT_TRUE(Secret::from_file(link).hex() == digits());
  folder.write("secret", digits(), 0644);
  EXPECT_THROW(Secret::from_file(link), ConfigError);
}

TEST(SecretFile, RefusesWhatHoldsNoSecret) {
  const TemporaryFolder folder;
  EXPECT_THROW(Secret::from_file(folder.path() / "absent"), ConfigError);
  EXPECT_THROW(Secret::from_file(folder.path()), ConfigError);
  for (const std::string& text : {std::string(), digits() + "\n\n", digits() + digits(), std::string(1000, 'x')}) {
    const auto file = folder.write("wrong", text, 0600);
    expect_parts(message_of<ConfigError>([&] { Secret::from_file(file); }), {file.string()});
  }
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(Secret::from_file(pipe), ConfigError);
}

}  // namespace
}  // namespace tessera::store
