#pragma once

#include <tessera/core/descriptor.h>

#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::testing {

/// The lines that a person sees after these bytes: enough of a terminal for what Tessera writes.
inline std::vector<std::string> seen(std::string_view bytes) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes.substr(i, 3) == "\033[K") {
      lines.back().resize(std::min(lines.back().size(), column));
      i += 2;
    } else if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else {
      std::string& line = lines.back();
      if (column == line.size()) line.push_back(' ');
      line[column++] = bytes[i];
    }
  }
  return lines;
}

/// A terminal of `columns`, and what is written to it.
class Screen {
 public:
  explicit Screen(unsigned short columns) {
    int controller = -1;
    int terminal = -1;
    const winsize size{24, columns, 0, 0};
    if (openpty(&controller, &terminal, nullptr, nullptr, &size) != 0) throw std::runtime_error("no terminal");
    controller_ = Descriptor(controller);
    terminal_ = Descriptor(terminal);
    fcntl(controller, F_SETFL, O_NONBLOCK);
  }

  int descriptor() const { return terminal_.get(); }
  Descriptor duplicate() const { return Descriptor(dup(terminal_.get())); }
  Descriptor take_descriptor() { return std::move(terminal_); }

  std::string bytes() {
    std::array<char, 4096> block{};
    for (ssize_t count = 0; (count = read(controller_.get(), block.data(), block.size())) > 0;) {
      bytes_.append(block.data(), static_cast<std::size_t>(count));
    }
    return bytes_;
  }
  std::vector<std::string> lines() { return seen(bytes()); }
  /// Whether the last line begins so. Blocks: until it does, at most for ten seconds.
  bool comes_to_show(const std::string& start) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!lines().back().starts_with(start)) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }

 private:
  Descriptor controller_;
  Descriptor terminal_;
  std::string bytes_;
};

}  // namespace tessera::testing
