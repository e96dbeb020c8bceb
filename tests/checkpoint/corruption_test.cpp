#include <tessera/checkpoint/saved_step.h>
#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "checkpoint/step_writer.h"
#include "support/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What is said about a step; empty when it is taken for intact.
std::string found_in(const fs::path& folder) {
  try {
    std::string text;
    for (const std::string& fault : SavedStep(folder).verify()) text += fault + "\n";
    return text;
  } catch (const StorageError& error) {
    return error.what();
  }
}

class Corruption : public ::testing::Test {
 protected:
  Corruption() : path_(testing::sample_step(20).write(folder_.path())) {
    for (const auto& entry : fs::directory_iterator(path_)) {
      files_.emplace(entry.path().filename().string(), testing::text_of_file(entry.path()));
    }
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

  /// After a change of `name`: it is found, the file is named, and the file is as it was again.
  void expect_named(const std::string& name, const std::string& what) const {
    const std::string said = found_in(path_);
    EXPECT_NE(said.find((path_ / name).string()), std::string::npos) << what << ", said: " << said;
    write(name, files_.at(name));
  }

  testing::TemporaryFolder folder_;
  fs::path path_;
  std::map<std::string, std::string> files_;
};

TEST_F(Corruption, OfASingleBitIsFoundAndNamedAThousandTimes) {
  std::mt19937_64 random(2024);
  std::uint64_t num_bytes = 0;
  for (const auto& [name, bytes] : files_) num_bytes += bytes.size();
  for (int round = 0; round < 1000; ++round) {
    std::uint64_t offset = random() % num_bytes;
    auto file = files_.begin();
    while (offset >= file->second.size()) offset -= (file++)->second.size();
    std::string bytes = file->second;
    bytes[offset] = static_cast<char>(bytes[offset] ^ (1 << (random() % 8)));
    write(file->first, bytes);
    expect_named(file->first, "a bit of byte " + std::to_string(offset) + " of " + file->first);
  }
  EXPECT_EQ(found_in(path_), "");
}

// Any flipped bit of the manifest, in turn: nothing else tells what the step should hold.
TEST_F(Corruption, OfAnyBitOfTheManifestIsFound) {
  const std::string& text = files_.at("manifest.json");
  for (std::size_t i = 0; i < 8 * text.size(); i += 3) {
    std::string bytes = text;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    EXPECT_THROW(Manifest::parse(bytes, "manifest"), StorageError) << i;
  }
}

TEST_F(Corruption, ByTruncationIsFoundAndNamed) {
  std::mt19937_64 random(7);
  for (const auto& [name, bytes] : files_) {
    for (int round = 0; round < 20; ++round) {
      const std::size_t length = round == 0 ? 0 : round == 1 ? bytes.size() - 1 : random() % bytes.size();
      write(name, bytes.substr(0, length));
      expect_named(name, name + " cut to " + std::to_string(length));
    }
    write(name, bytes + std::string(1, '\0'));
    expect_named(name, name + " with a byte more");
  }
  EXPECT_EQ(found_in(path_), "");
}

TEST_F(Corruption, ByMissingFilesIsFoundAndNamed) {
  for (const auto& [name, bytes] : files_) {
    fs::remove(path_ / name);
    expect_named(name, name + " missing");
    fs::remove(path_ / name);
    fs::create_directory(path_ / name);
    EXPECT_NE(found_in(path_).find((path_ / name).string()), std::string::npos) << name;
    fs::remove(path_ / name);
    write(name, bytes);
  }
  EXPECT_EQ(found_in(path_), "");
}

TEST_F(Corruption, BySwappedFilesIsFoundAndNamed) {
  for (const auto& [one, first] : files_) {
    for (const auto& [other, second] : files_) {
      if (one >= other) continue;
      write(one, second);
      write(other, first);
      const std::string said = found_in(path_);
      EXPECT_TRUE(said.find((path_ / one).string()) != std::string::npos ||
                  said.find((path_ / other).string()) != std::string::npos)
          << one << " and " << other << ", said: " << said;
      write(one, first);
      write(other, second);
    }
  }
  EXPECT_EQ(found_in(path_), "");
}

// The same file of another step has the same length and often the same header.
TEST_F(Corruption, ByFilesOfAnotherStepIsFoundAndNamed) {
  const auto other = testing::sample_step(40).write(folder_.path());
  for (const auto& [name, bytes] : files_) {
    const std::string others = testing::text_of_file(other / name);
    if (others == bytes) continue;  // the index
    write(name, others);
    expect_named(name, name + " of another step");
  }
  EXPECT_EQ(found_in(path_), "");
}

}  // namespace
}  // namespace tessera
