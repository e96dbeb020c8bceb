#include "core/nearest_key.h"

#include <algorithm>
#include <numeric>

namespace tessera {
namespace {

bool is_close(std::size_t distance, std::string_view a, std::string_view b) {
  return 2 * distance <= std::max(a.size(), b.size());
}

std::vector<std::string> keys_and_sections(const FieldTable& fields) {
  std::vector<std::string> all = section_names(fields);
  for (const Field& field : fields.fields()) {
    all.push_back(field.key);
  }
  return all;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::optional<std::string> best;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (is_close(distance, word, candidate) && (!best || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string_view section_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

std::string_view leaf_of(std::string_view key) {
  const auto dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::vector<std::string> section_names(const FieldTable& fields) {
  std::vector<std::string> names;
  for (const Field& field : fields.fields()) {
    for (auto dot = field.key.find('.'); dot != std::string::npos; dot = field.key.find('.', dot + 1)) {
      const std::string name = field.key.substr(0, dot);
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

std::string unknown_key_hint(const FieldTable& fields, std::string_view key) {
  // Half a point for another section: at equal distance the key beside the wrong one wins.
  std::optional<std::string> best;
  std::size_t best_score = 0;
  std::string beside;
  for (const std::string& candidate : keys_and_sections(fields)) {
    const bool same_section = section_of(candidate) == section_of(key);
    const std::size_t distance = edit_distance(leaf_of(key), leaf_of(candidate));
    const std::size_t score = 2 * distance + (same_section ? 0 : 1);
    if (is_close(distance, leaf_of(key), leaf_of(candidate)) && (!best || score < best_score)) {
      best = candidate;
      best_score = score;
    }
    if (same_section) {
      beside += (beside.empty() ? "" : ", ") + candidate;
    }
  }
  if (best) {
    return "did you mean \"" + *best + "\"?";
  }
  return beside.empty() ? "there is no such section" : "valid keys are " + beside;
}

}  // namespace tessera
