#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

/// An event of a trace, with its track's name as "rank 0 of 2 (...)/compute".
struct Slice {
  int rank = -1;
  std::string track;
  std::string name;
  std::string category;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;  ///< equal to the start for an instant
  std::map<std::string, std::string> annotations;
};

/// Everything in the file, in the order of the starts. Throws std::runtime_error for what a viewer would not take:
/// unknown tracks, ends without a beginning, slices that overlap on a track.
std::vector<Slice> read_trace(const std::filesystem::path& path);

/// Those of a rank whose track ends so.
std::vector<Slice> on_track(const std::vector<Slice>& slices, int rank, const std::string& track);

}  // namespace tessera::testing
