#include "observe/json_lines.h"

#include <tessera/flight/clock.h>

#include <nlohmann/json.hpp>

#include "observe/output_file.h"

namespace tessera::observe {
namespace {

/// Texts of the user's need not be UTF-8, and a log should not end for that.
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
  if (summary.tokens > 0) {
    object["tokens"] = summary.tokens;
    object["tokens_per_second"] = summary.tokens_per_second();
  }
  object["resident_bytes"] = summary.memory.resident_bytes;
  object["peak_bytes"] = summary.memory.peak_bytes;
  for (const auto& [name, value] : summary.last.scalars) object["scalars"][name] = value;
  return line_of(object);
}

std::unique_ptr<Sink> make_json_lines(const std::filesystem::path& path, const RunDescription& run) {
  return std::make_unique<JsonLines>(path, run);
}

}  // namespace tessera::observe
