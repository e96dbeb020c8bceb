#include <tessera/core/error.h>
#include <tessera/core/log.h>
#include "core/nearest_key.h"

#include <algorithm>
#include <mutex>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <string>
#include <utility>

namespace tessera {
namespace {

class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(LogSink function) : function_(std::move(function)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    function_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  LogSink function_;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  throw InternalError("a log level without a number");
}

spdlog::sink_ptr make_sink(LogSink function) {
  spdlog::sink_ptr sink;
  std::string line_end;
  if (function) {
    sink = std::make_shared<FunctionSink>(std::move(function));
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    line_end = "\n";
  }
  sink->set_formatter(
      std::make_unique<spdlog::pattern_formatter>("[%n] %l: %v", spdlog::pattern_time_type::local, line_end));
  return sink;
}

std::string prefix(std::string_view module, std::optional<int> rank) {
  std::string text = "tessera ";
  if (rank) {
    text += "rank " + std::to_string(*rank) + " ";
  }
  return text.append(module);
}

}  // namespace

LogLevel parse_log_level(std::string_view name) {
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "info") {
    return LogLevel::kInfo;
  }
  if (name == "warning") {
    return LogLevel::kWarning;
  }
  if (name == "error") {
    return LogLevel::kError;
  }
  throw ConfigError("expected a log level, \"debug\", \"info\", \"warning\" or \"error\", found " + in_quotes(name));
}

// spdlog's own registry is not used: it is global, and two worlds in one process have loggers of one name.
struct Logger::State {
  State(std::string_view module, std::optional<int> rank_of_process, LogLevel level, spdlog::sink_ptr sink)
      : rank(rank_of_process), threshold(level), spd(prefix(module, rank), std::move(sink)) {
    spd.set_level(spdlog_level(level));
  }

  std::optional<int> rank;
  LogLevel threshold;
  spdlog::logger spd;
};

Logger::Logger(std::string_view module, std::optional<int> rank, LogLevel level, LogSink sink)
    : Logger(std::make_shared<State>(module, rank, level, make_sink(std::move(sink)))) {}

Logger::Logger(std::shared_ptr<State> state) : state_(std::move(state)) {}

Logger Logger::for_module(std::string_view module) const {
  return Logger(std::make_shared<State>(module, state_->rank, state_->threshold, state_->spd.sinks().front()));
}

bool Logger::enabled(LogLevel level) const { return state_->spd.should_log(spdlog_level(level)); }

void Logger::log(LogLevel level, std::string_view message) const {
  if (!enabled(level)) {
    return;
  }
  while (true) {
    const auto end = message.find('\n');
    state_->spd.log(spdlog_level(level), spdlog::string_view_t(message.data(), std::min(end, message.size())));
    // A line feed at the end of the message does not start another line.
    if (end == std::string_view::npos || end + 1 == message.size()) {
      return;
    }
    message.remove_prefix(end + 1);
  }
}

}  // namespace tessera
