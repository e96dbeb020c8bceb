#include "observe/sinks.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "observe/event_file.h"
#include "observe/output_file.h"
#include "observe/terminal.h"

namespace tessera::observe {
namespace {

class ProgressLine : public Sink {
 public:
  ProgressLine(std::shared_ptr<Terminal> terminal, RunDescription run)
      : terminal_(std::move(terminal)), run_(std::move(run)) {}

  void take(const StepSummary& summary) override {
    pace_.add(summary);
    latest_ = summary;
  }
  void flush() override {
    if (latest_) terminal_->draw(progress_text(*latest_, pace_, run_, terminal_->width()));
  }
  void close() override {
    flush();
    terminal_->leave();
  }

 private:
  std::shared_ptr<Terminal> terminal_;
  RunDescription run_;
  Pace pace_;
  std::optional<StepSummary> latest_;
};

class PlainProgress : public Sink {
 public:
  PlainProgress(std::shared_ptr<Terminal> terminal, RunDescription run, std::chrono::milliseconds every)
      : terminal_(std::move(terminal)), run_(std::move(run)), every_(every) {}

  void take(const StepSummary& summary) override {
    pace_.add(summary);
    latest_ = summary;
    const std::int64_t since_ns = summary.time_ns - shown_ns_;
    if (shown_ns_ == 0 || std::chrono::nanoseconds(since_ns) >= every_) show();
  }
  void close() override { show(); }

 private:
  void show() {
    if (!latest_ || latest_->time_ns == shown_ns_) return;
    shown_ns_ = latest_->time_ns;
    constexpr std::size_t kAnyWidth = std::numeric_limits<std::size_t>::max();
    terminal_->print(STDERR_FILENO, progress_text(*latest_, pace_, run_, kAnyWidth));
  }

  std::shared_ptr<Terminal> terminal_;
  RunDescription run_;
  std::chrono::milliseconds every_;
  Pace pace_;
  std::optional<StepSummary> latest_;
  std::int64_t shown_ns_ = 0;
};

}  // namespace

std::unique_ptr<Sink> make_progress_line(std::shared_ptr<Terminal> terminal, const RunDescription& run) {
  return std::make_unique<ProgressLine>(std::move(terminal), run);
}

std::unique_ptr<Sink> make_plain_progress(std::shared_ptr<Terminal> terminal, const RunDescription& run,
                                          std::chrono::milliseconds every) {
  return std::make_unique<PlainProgress>(std::move(terminal), run, every);
}

namespace {

/// Texts of the user need not be UTF-8; that should not end the log.
std::string line_of(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

class JsonLines : public Sink {
 public:
  JsonLines(const std::filesystem::path& path, const RunDescription& run) : file_(path, OutputFile::Mode::kAppend) {
    nlohmann::ordered_json object;
    object["run"] = {{"time", flight::seconds_of(flight::now_ns())}, {"ranks", run.num_ranks}};
    if (run.total_steps > 0) object["run"]["total_steps"] = run.total_steps;
    if (!run.config.empty()) object["run"]["config"] = run.config;
    file_.write(line_of(object) + "\n");
  }

  void take(const StepSummary& summary) override { pending_ += json_line(summary) + "\n"; }
  void flush() override {
    file_.write(pending_);
    pending_.clear();
  }

 private:
  OutputFile file_;
  std::string pending_;
};

}  // namespace

std::string json_line(const StepSummary& summary) {
  nlohmann::ordered_json object;
  object["step"] = summary.last.step;
  object["time"] = flight::seconds_of(summary.time_ns);
  if (summary.last.loss) object["loss"] = *summary.last.loss;
  if (summary.last.learning_rate) object["learning_rate"] = *summary.last.learning_rate;
  if (summary.last.gradient_norm) object["gradient_norm"] = *summary.last.gradient_norm;
  object["step_seconds"] = summary.step_seconds();
  if (const auto seconds = summary.host_step_seconds()) object["host_step_seconds"] = *seconds;
  if (summary.tokens > 0) {
    object["tokens"] = summary.tokens;
    object["tokens_per_second"] = summary.tokens_per_second();
  }
  object["resident_bytes"] = summary.memory.resident_bytes;
  object["peak_bytes"] = summary.memory.peak_bytes;
  if (summary.device_memory) {
    object["device_bytes"] = summary.device_memory->allocated_bytes;
    object["device_peak_bytes"] = summary.device_memory->peak_bytes;
  }
  for (const auto& [name, value] : summary.last.scalars) object["scalars"][name] = value;
  return line_of(object);
}

std::unique_ptr<Sink> make_json_lines(const std::filesystem::path& path, const RunDescription& run) {
  return std::make_unique<JsonLines>(path, run);
}

namespace {

std::string number_text(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "+Inf" : "-Inf";
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

std::string label_text(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
  return text;
}

class Page {
 public:
  void add(const char* name, const char* type, const char* help, std::optional<double> value) {
    if (!value) return;
    describe(name, type, help);
    text_ += std::string(name) + " " + number_text(*value) + "\n";
  }

  void add_scalars(const std::vector<std::pair<std::string, double>>& scalars) {
    if (scalars.empty()) return;
    constexpr const char* kName = "tessera_scalar";
    describe(kName, "gauge", "Anything else that the training loop recorded.");
    for (const auto& [name, value] : scalars) {
      text_ += std::string(kName) + "{name=\"" + label_text(name) + "\"} " + number_text(value) + "\n";
    }
  }

  const std::string& text() const { return text_; }

 private:
  void describe(const char* name, const char* type, const char* help) {
    text_ += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }

  std::string text_;
};

}  // namespace

std::string exposition(const StepSummary* summary, const RunDescription& run, std::int64_t num_tokens) {
  Page page;
  page.add("tessera_ranks", "gauge", "Ranks of the job.", run.num_ranks);
  if (run.total_steps > 0) {
    page.add("tessera_total_steps", "gauge", "Steps that the run will take.", static_cast<double>(run.total_steps));
  }
  if (summary == nullptr) return page.text();
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  page.add("tessera_step", "gauge", "Steps that are done.", number(summary->last.step));
  page.add("tessera_last_step_timestamp_seconds", "gauge", "When the latest step was done, since 1970.",
           number(summary->time_ns) * 1e-9);
  page.add("tessera_loss", "gauge", "Loss of the latest step.", summary->last.loss);
  page.add("tessera_learning_rate", "gauge", "Learning rate of the latest step.", summary->last.learning_rate);
  page.add("tessera_gradient_norm", "gauge", "Norm of the gradients of the latest step.", summary->last.gradient_norm);
  page.add("tessera_step_seconds", "gauge", "Time of a step, lately.", summary->step_seconds());
  page.add("tessera_host_step_seconds", "gauge", "How long the host took to launch it on a device.",
           summary->host_step_seconds());
  if (num_tokens > 0) {
    page.add("tessera_tokens_total", "counter", "Tokens that were trained on since the program began.",
             number(num_tokens));
    page.add("tessera_tokens_per_second", "gauge", "Tokens a second, lately.", summary->tokens_per_second());
  }
  page.add("tessera_resident_bytes", "gauge", "Memory of rank 0's process.", number(summary->memory.resident_bytes));
  page.add("tessera_peak_resident_bytes", "gauge", "The most that it ever was.", number(summary->memory.peak_bytes));
  if (summary->device_memory) {
    page.add("tessera_device_bytes", "gauge", "Memory of tensors on rank 0's device.",
             number(summary->device_memory->allocated_bytes));
    page.add("tessera_peak_device_bytes", "gauge", "The most that it ever was.",
             number(summary->device_memory->peak_bytes));
  }
  page.add_scalars(summary->last.scalars);
  return page.text();
}

namespace {

class MetricsSink : public Sink {
 public:
  MetricsSink(std::shared_ptr<MetricsPage> page, RunDescription run) : page_(std::move(page)), run_(std::move(run)) {
    page_->set(exposition(nullptr, run_, 0));
  }

  void take(const StepSummary& summary) override {
    num_tokens_ += summary.tokens;
    latest_ = summary;
    is_new_ = true;
  }
  // Not in take(): nobody reads the page after every step.
  void flush() override {
    if (std::exchange(is_new_, false)) page_->set(exposition(&latest_, run_, num_tokens_));
  }

 private:
  std::shared_ptr<MetricsPage> page_;
  RunDescription run_;
  std::int64_t num_tokens_ = 0;
  StepSummary latest_;
  bool is_new_ = false;
};

void require_range(std::string& faults, const char* key, std::int64_t value, std::int64_t least) {
  if (value >= least) return;
  faults += (faults.empty() ? "" : "\n") + std::string(key) + ": expected at least " + std::to_string(least) +
            ", found " + std::to_string(value);
}

}  // namespace

void check_options(const ObserveOptions& options) {
  ObserveOptions::fields().check(options);
  std::string faults;
  require_range(faults, "every", options.every(), 1);
  require_range(faults, "trace_skip", options.trace_skip(), 0);
  require_range(faults, "trace_steps", options.trace_steps(), 0);
  require_range(faults, "plain_every", options.plain_every().count(), 0);
  if (!faults.empty()) throw ConfigError(faults);
  if (!options.prometheus().empty()) parse_listen_address(options.prometheus());
}

SinkSet make_sinks(const ObserveOptions& options, const RunDescription& run,
                   const std::shared_ptr<Terminal>& terminal) {
  SinkSet set;
  if (run.rank != 0) return set;
  if (options.progress() == "plain") {
    set.sinks.push_back({"the progress", make_plain_progress(terminal, run, options.plain_every()), 1});
  } else if (terminal->kind() != Terminal::Kind::kNone) {
    set.sinks.push_back({"the progress line", make_progress_line(terminal, run), 1});
  }
  if (!options.json().empty()) {
    set.sinks.push_back({"the JSON lines", make_json_lines(options.json(), run), options.every()});
  }
  if (!options.tensorboard().empty()) {
    set.sinks.push_back({"TensorBoard's events", make_event_file(options.tensorboard(), run), options.every()});
  }
  if (!options.prometheus().empty()) {
    const auto page = std::make_shared<MetricsPage>();
    set.sinks.push_back({"the page for Prometheus", std::make_unique<MetricsSink>(page, run), options.every()});
    set.server = std::make_unique<MetricsServer>(parse_listen_address(options.prometheus()), page);
  }
  return set;
}

}  // namespace tessera::observe
