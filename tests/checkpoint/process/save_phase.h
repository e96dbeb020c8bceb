#pragma once

#include <linux/seccomp.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::testing {

/// What a save does to the disk, in its order.
enum class SavePhase : std::uint8_t { kDraft, kCopy, kWrite, kSync, kTelling, kManifest, kRename, kCleanUp };

inline constexpr std::array kSavePhases{SavePhase::kDraft,  SavePhase::kCopy,    SavePhase::kWrite,
                                        SavePhase::kSync,   SavePhase::kTelling, SavePhase::kManifest,
                                        SavePhase::kRename, SavePhase::kCleanUp};

const char* name_of(SavePhase phase);

/// The calls by which a save can be followed.
std::vector<int> calls_of_saves();

/// A call that a process is about to make.
struct SeenCall {
  int call = 0;
  std::string path = {};    ///< of the file that it is about; empty: of none
  std::string target = {};  ///< of a rename
  std::uint64_t offset = 0;
  bool creates = false;
};

/// `process` stands still in the call: its memory and its descriptors tell the paths.
SeenCall seen_call(int process, const seccomp_data& call);

/// Which phase a call belongs to; none for what no save does. `former` is the phase of the rank's call before.
std::optional<SavePhase> phase_of(const SeenCall& call, const std::string& root, int rank,
                                  std::optional<SavePhase> former);

}  // namespace tessera::testing
