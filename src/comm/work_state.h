#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/transport.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"

namespace tessera {

/// Everything about an operation under way.
struct Work::State {
  std::shared_ptr<Group> group;
  const char* operation = "";
  std::source_location where;
  std::chrono::milliseconds timeout{0};
  std::uint64_t sequence = 0;
  std::uint64_t ticket = 0;
  /// When the bytes had arrived, 0 before; null without a trace.
  std::shared_ptr<std::atomic<std::int64_t>> done_ns;
  /// How long the call blocked its caller; 0 without a trace.
  std::int64_t blocked_ns = 0;

  c10::intrusive_ptr<c10d::Work> work;  ///< one of these two
  std::unique_ptr<Transfer> transfer;
  std::vector<at::Tensor> kept;  ///< inputs that must outlive the operation
  at::Tensor result;
  std::function<void()> finish;  ///< runs once, after success
  bool on_device = false;        ///< `work` is done when the device says so, and waiting for it lets a stream wait
  bool finished = false;
  std::exception_ptr failure;  ///< what every wait throws

  ~State();

  bool is_collective() const { return std::string_view(operation) != "send" && std::string_view(operation) != "recv"; }

  /// "all_reduce #3 of group world, called on rank 1 of 4 at train.cpp:40"
  std::string describe() const;
  /// Rethrows the exception in flight with `describe()` before its text, as the same kind of tessera::Error.
  [[noreturn]] void rethrow();

 private:
  /// For failures by a peer, a connection or a deadline: also reports the failure to all ranks.
  void fail(const std::string& text);
};

}  // namespace tessera
