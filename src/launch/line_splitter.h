#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tessera::launch {

/// Cuts a stream of bytes into lines. A carriage return ends a line too, so that progress bars show; what stays empty
/// by that is left out. A line without an end is cut into pieces, so that it cannot fill the memory.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 10;
  /// Takes one line without its end.
  using Take = std::function<void(std::string_view line)>;

  explicit LineSplitter(Take take) : take_(std::move(take)) {}

  void add(std::string_view bytes);
  /// Gives what came after the last end of a line, if anything.
  void finish();

 private:
  void append(std::string_view bytes);
  void end_line(char ending);

  Take take_;
  std::string partial_;
  bool after_return_ = false;
  bool after_cut_ = false;
};

}  // namespace tessera::launch
