#include "generation/options.h"

#include <tessera/core/error.h>

#include <string>

namespace tessera::models {

const FieldList<GenerateOptions>& GenerateOptions::fields() {
  static const FieldList<GenerateOptions> list =
      FieldList<GenerateOptions>("generate")
          .add("max_new_tokens", &GenerateOptions::max_new_tokens_, "How many tokens to add.")
          .add("temperature", &GenerateOptions::temperature_,
               "Below 1 the likely tokens become likelier, above 1 less so; 0: always the likeliest.")
          .add("top_k", &GenerateOptions::top_k_, "Only the so many likeliest tokens can be drawn; 0 for all.")
          .add("top_p", &GenerateOptions::top_p_,
               "Only the likeliest tokens that together have this probability can be drawn; 1 for all.")
          .add("seed", &GenerateOptions::seed_, "The same seed gives the same text.")
          .add("use_cache", &GenerateOptions::use_cache_, "Keep keys and values: faster, and the same text.")
          .add("stop_token", &GenerateOptions::stop_token_, "A text ends with this token; -1 for none.");
  return list;
}

void GenerateOptions::check() const {
  std::string faults;
  if (max_new_tokens() < 0) {
    faults += "\n  max_new_tokens is " + std::to_string(max_new_tokens()) + "; it must not be below 0";
  }
  if (!(temperature() >= 0)) {
    faults += "\n  temperature is " + std::to_string(temperature()) + "; it must not be below 0";
  }
  if (top_k() < 0) faults += "\n  top_k is " + std::to_string(top_k()) + "; it must not be below 0";
  const bool is_share = top_p() > 0 && top_p() <= 1;  // false for NaN
  if (!is_share) {
    faults += "\n  top_p is " + std::to_string(top_p()) + "; it must be above 0 and at most 1";
  }
  if (temperature() == 0 && (top_k() != 0 || top_p() != 1)) {
    faults += "\n  temperature 0 draws nothing: leave top_k and top_p at 0 and 1";
  }
  if (!faults.empty()) throw ConfigError("a text cannot be continued in this way:" + faults);
}

}  // namespace tessera::models
