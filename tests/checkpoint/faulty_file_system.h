#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/disk/file_system.h"

namespace tessera::testing {

/// The power is gone. No Error, so that nothing that handles errors goes on.
struct PowerCut {};

enum class Fault { kNone, kPowerCut, kNoSpace, kInputOutput };

/// A disk in memory that knows what of it would outlast a power cut, and fails when a test asks for it.
///
/// Bytes are safe with OutputFile::sync(), names with sync_folder(). Of what is not safe any part may be there after a
/// cut: any sectors of a file, the old length or the new one, and any of the changes of a folder, each of them as a
/// whole. A failing write has written some of its sectors, a failing sync has dropped some for good.
/// Thread-safety: all members may be called from any thread.
class FaultyFileSystem : public checkpoints::FileSystem {
 public:
  static constexpr std::size_t kSectorBytes = 512;

  /// Empty. `seed` decides what a failing call leaves undone.
  explicit FaultyFileSystem(std::uint32_t seed);
  ~FaultyFileSystem() override;

  /// The `call`-th call from now on, counted from 1, has the fault; after kPowerCut all that follow have it too.
  void arm(Fault fault, int call);
  /// Since arm().
  int num_calls() const;
  /// What the armed call was: "sync model.safetensors". Empty while it has not come.
  std::string struck() const;
  /// From now on these say that they are done, and do nothing.
  void ignore_file_syncs(bool ignored) { are_file_syncs_ignored_ = ignored; }
  void ignore_folder_syncs(bool ignored) { are_folder_syncs_ignored_ = ignored; }
  /// From now on an exchange takes two renames, as on file systems that have none.
  void exchange_in_two(bool in_two) { is_exchange_in_two_ = in_two; }

  /// What processes see: the bytes of every file by its path; a folder is there with a slash at its end, and no bytes.
  std::map<std::string, std::string> seen() const;
  /// Copies it into a real folder, which exists.
  void write_seen(const std::filesystem::path& into) const;
  /// The power goes, or went, and comes back: what is seen and safe from now on is one of the states in which the disk
  /// may be. `seed` chooses.
  void restart(std::uint32_t seed);

  bool exists(const std::filesystem::path& path) override;
  std::vector<std::string> list(const std::filesystem::path& folder) override;
  std::optional<std::string> read(const std::filesystem::path& path) override;
  void make_folder(const std::filesystem::path& path) override;
  std::unique_ptr<checkpoints::OutputFile> create(const std::filesystem::path& path, std::uint64_t num_bytes) override;
  std::unique_ptr<checkpoints::OutputFile> open(const std::filesystem::path& path) override;
  void sync_folder(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void exchange(const std::filesystem::path& a, const std::filesystem::path& b,
                const std::filesystem::path& aside) override;
  void remove_file(const std::filesystem::path& path) override;
  void remove_folder(const std::filesystem::path& path) override;

 private:
  class Handle;
  struct File;
  struct Folder;
  /// Names that change together; none: the name goes.
  using Node = std::variant<std::shared_ptr<File>, std::shared_ptr<Folder>>;
  using Names = std::map<std::string, Node>;
  using Change = std::map<std::string, std::optional<Node>>;

  /// Counts a call. Returns the fault that it is to have; throws PowerCut when the power is gone already.
  Fault begin(const std::string& call, const std::filesystem::path& path);
  /// For calls that a fault leaves undone.
  void begin_or_fail(const std::string& call, const std::filesystem::path& path);
  [[noreturn]] void fail(Fault fault, const std::filesystem::path& path);
  std::shared_ptr<Folder> folder_at(const std::filesystem::path& path) const;
  std::optional<Node> find(const std::filesystem::path& path) const;
  Node node_at(const std::filesystem::path& path) const;
  void change(const std::filesystem::path& folder, const Change& change);
  void remove_all(Folder& folder, double chance);
  void write(File& file, const std::vector<checkpoints::WriteRange>& ranges, double chance);

  mutable std::mutex mutex_;
  std::mt19937 random_;
  std::shared_ptr<Folder> root_;
  Fault fault_ = Fault::kNone;
  int fault_call_ = 0;
  int num_calls_ = 0;
  std::string struck_;
  bool is_cut_ = false;
  bool are_file_syncs_ignored_ = false;
  bool are_folder_syncs_ignored_ = false;
  bool is_exchange_in_two_ = false;
};

}  // namespace tessera::testing
