#include "observe/sinks.h"

#include <tessera/core/error.h>

#include <utility>

#include "observe/event_file.h"
#include "observe/exposition.h"
#include "observe/json_lines.h"
#include "observe/progress.h"

namespace tessera::observe {
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
  // Not with each step: nobody asks so often.
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
