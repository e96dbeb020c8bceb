#include "train/state/saved_names.h"

#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

namespace tessera::train {
namespace {

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

template <class Value>
const char* type_name() {
  if constexpr (std::is_same_v<Value, bool>) return "a boolean";
  if constexpr (std::is_same_v<Value, std::int64_t>) return "a whole number";
  if constexpr (std::is_same_v<Value, double>) return "a number";
  return "a text";
}

std::string listed(const std::string& title, const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  std::string text = names.empty() ? "" : "\n" + title;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += "\n  " + names[i];
  if (names.size() > kMost) text += "\n  and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

}  // namespace

SavedNames::SavedNames(const Manifest& manifest, RestoreOptions options)
    : manifest_(manifest), options_(std::move(options)) {
  for (const ManifestTensor& tensor : manifest_.tensors) tensors_[{tensor.group, tensor.name}] = &tensor;
}

const std::string& SavedNames::saved_name(const std::string& name) const {
  const auto found = options_.rename().find(name);
  return found == options_.rename().end() ? name : found->second;
}

const ManifestTensor* SavedNames::find_tensor(const std::string& group, const std::string& name) const {
  const auto found = tensors_.find({group, name});
  return found == tensors_.end() ? nullptr : found->second;
}

const ManifestValue* SavedNames::find_value(const std::string& name) const {
  const auto found = manifest_.values.find(name);
  return found == manifest_.values.end() ? nullptr : &found->second;
}

std::vector<const ManifestTensor*> SavedNames::find_tensors(const std::string& group, const std::string& prefix) const {
  std::vector<const ManifestTensor*> found;
  for (const auto& [key, tensor] : tensors_) {
    if (key.first == group && key.second.starts_with(prefix)) found.push_back(tensor);
  }
  return found;
}

bool SavedNames::take_tensor(const std::string& group, const std::string& name,
                             const std::vector<std::int64_t>& shape) {
  taken_tensors_.insert({group, name});
  const ManifestTensor* const tensor = find_tensor(group, name);
  if (!tensor) {
    note_missing(group + "/" + name);
    return false;
  }
  if (tensor->shape == shape) return true;
  note_fault(group + "/" + name + " has the shape " + text_of(tensor->shape) + " there, and " + text_of(shape) +
             " here");
  return false;
}

template <class Value>
std::optional<Value> SavedNames::take_value(const std::string& name) {
  taken_values_.insert(name);
  const ManifestValue* const value = find_value(name);
  if (!value) {
    note_missing(name);
    return std::nullopt;
  }
  if (const auto* const found = std::get_if<Value>(value)) return *found;
  if constexpr (std::is_same_v<Value, double>) {
    if (const auto* const whole = std::get_if<std::int64_t>(value)) return static_cast<double>(*whole);
  }
  note_fault(name + " is not " + type_name<Value>() + " there");
  return std::nullopt;
}
template std::optional<bool> SavedNames::take_value(const std::string&);
template std::optional<std::int64_t> SavedNames::take_value(const std::string&);
template std::optional<double> SavedNames::take_value(const std::string&);
template std::optional<std::string> SavedNames::take_value(const std::string&);

void SavedNames::pass_over(const std::string& group, const std::string& prefix) {
  for (const auto& [key, tensor] : tensors_) {
    if (key.first == group && key.second.starts_with(prefix)) taken_tensors_.insert(key);
  }
  for (const auto& [name, value] : manifest_.values) {
    if (name.starts_with(prefix)) taken_values_.insert(name);
  }
}

std::vector<std::string> SavedNames::unexpected() const {
  std::vector<std::string> names;
  for (const auto& [key, tensor] : tensors_) {
    if (options_.weights_only() && key.first != kModelGroup) continue;
    if (!taken_tensors_.contains(key)) names.push_back(key.first + "/" + key.second);
  }
  if (options_.weights_only()) return names;
  for (const auto& [name, value] : manifest_.values) {
    if (!taken_values_.contains(name)) names.push_back(name);
  }
  return names;
}

bool SavedNames::holds_weights_alone() const {
  return !options_.weights_only() && manifest_.values.empty() &&
         std::all_of(tensors_.begin(), tensors_.end(),
                     [](const auto& item) { return item.first.first == kModelGroup; });
}

void SavedNames::require_complete() const {
  std::string text = listed("What does not fit:", faults_);
  if (!options_.allow_missing()) text += listed("It lacks (allow_missing(true) leaves these as they are):", missing_);
  if (!options_.allow_unexpected()) {
    text += listed("Nothing here asks for (allow_unexpected(true) leaves these out):", unexpected());
  }
  if (text.empty()) return;
  if (holds_weights_alone())
    text += "\nThis step holds weights alone: weights_only(true) takes them, and nothing else.";
  throw ConfigError("the state of step " + std::to_string(manifest_.step) +
                    " is not that of this program, and nothing was changed." + text);
}

namespace {

/// Replicas differ after a forward, and rank 0, whose values are saved, does not have all parts.
void require_whole(const HeldSlice& buffer) {
  if (buffer.slice.is_whole()) return;
  throw ConfigError("the buffer " + buffer.name + " is " + buffer.slice.text() +
                    ": buffers that were cut are not saved and restored yet. Keep them whole on every rank");
}

}  // namespace

ModelTensors tensors_of(const ParallelModel& model) {
  ModelTensors found;
  for (const StateSlice& slice : model.state_slices()) {
    found.shapes[slice.name] = slice.slice.shape();
    const HeldSlice held{slice, kModelGroup};
    if (slice.is_buffer) {
      require_whole(held);
      found.buffers.push_back(held);
    } else if (slice.values.numel() > 0 || slice.slice.is_whole()) {
      found.parameters.push_back(held);
    }
  }
  for (TrainedTensor& trained : model.trained()) {
    found.parts[trained.tensor.unsafeGetTensorImpl()] = std::move(trained.parts);
  }
  return found;
}

HeldSlice slice_of(const std::string& group, const std::string& name, const ParameterPart& part,
                   const at::Tensor& tensor) {
  const at::Tensor held = intercept::held_part(tensor);
  // Not as a flat view: a whole tensor may have another memory format than row-major.
  if (part.held == Range{0, held.numel()}) return {{name, part.slice, held}, group};
  const at::NoGradGuard no_grad;
  return {{name, part.slice, held.view({-1}).narrow(0, part.held.start, part.held.size)}, group};
}

}  // namespace tessera::train
