#include "observe/exposition.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace tessera::observe {
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
  if (num_tokens > 0) {
    page.add("tessera_tokens_total", "counter", "Tokens that were trained on since the program began.",
             number(num_tokens));
    page.add("tessera_tokens_per_second", "gauge", "Tokens a second, lately.", summary->tokens_per_second());
  }
  page.add("tessera_resident_bytes", "gauge", "Memory of rank 0's process.", number(summary->memory.resident_bytes));
  page.add("tessera_peak_resident_bytes", "gauge", "The most that it ever was.", number(summary->memory.peak_bytes));
  page.add_scalars(summary->last.scalars);
  return page.text();
}

}  // namespace tessera::observe
