#pragma once

#include <tessera/core/descriptor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera::testing {

/// A step that is on the disk, as a rank knows it.
struct SavedVersion {
  std::int64_t step = 0;
  std::int64_t version = 0;

  auto operator<=>(const SavedVersion&) const = default;
};

/// What a rank tells the test.
struct RankNote {
  enum class Kind : std::int32_t { kJoined, kLoaded, kSaved };
  Kind kind = Kind::kJoined;
  std::int32_t rank = 0;
  SavedVersion saved;
};

/// A rank's end of a socket to the test. What it sent is with the test, even when the rank is killed next.
class RankLink {
 public:
  /// From now on the calls of this process that belong to saves wait for the test's answer.
  RankLink(const std::filesystem::path& socket, int rank);

  void tell(RankNote::Kind kind, SavedVersion saved) const;

 private:
  Descriptor socket_;
  int rank_;
};

/// The socket that ranks connect to.
Descriptor listen_at(const std::filesystem::path& socket);
/// None when there is none yet, or the other end is gone. `descriptor` gets one that came with it.
std::optional<RankNote> receive_note(int socket, Descriptor& descriptor);

}  // namespace tessera::testing
