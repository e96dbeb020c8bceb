#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// "debug", "info", "warning" or "error"; throws ConfigError for anything else.
LogLevel parse_log_level(std::string_view name);

/// Takes one line without its end. Never called by two threads at once for one Logger and its copies.
using LogSink = std::function<void(std::string_view line)>;

/// Writes lines such as `[tessera rank 3 comm] warning: slow peer 7`. A message of several lines gets the prefix on
/// each, so that the output of many ranks on one terminal can still be taken apart.
/// A handle: cheap to copy. Thread-safety: all members may be called from any thread.
class Logger {
 public:
  /// Without a rank the process is not one, such as a launcher. The default sink is standard error. Messages below
  /// `level` are dropped.
  explicit Logger(std::string_view module, std::optional<int> rank = std::nullopt, LogLevel level = LogLevel::kInfo,
                  LogSink sink = nullptr);

  /// The same rank, level and sink for another module.
  Logger for_module(std::string_view module) const;

  /// Whether a message would be written: to skip the cost of making one.
  bool enabled(LogLevel level) const;

  void log(LogLevel level, std::string_view message) const;
  void debug(std::string_view message) const { log(LogLevel::kDebug, message); }
  void info(std::string_view message) const { log(LogLevel::kInfo, message); }
  void warning(std::string_view message) const { log(LogLevel::kWarning, message); }
  void error(std::string_view message) const { log(LogLevel::kError, message); }

 private:
  struct State;
  explicit Logger(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace tessera
