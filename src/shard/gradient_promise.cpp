#include <tessera/core/error.h>
#include <tessera/shard/gradient_promise.h>

#include <mutex>
#include <string>
#include <utility>

namespace tessera::shard {
namespace {

std::string at_rank(int rank) { return " (rank " + std::to_string(rank) + ")"; }

/// The trained tensors with promised gradients, of all models of this process, and their ranks. Needed because a
/// GradScaler gets an optimizer, not a model.
struct Promised {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, int> ranks;

  static Promised& of_process() {
    static auto* const all = new Promised;  // never destroyed: models may outlive statics
    return *all;
  }
};

}  // namespace

GradientPromise::GradientPromise(NamedTensors parameters, std::vector<at::Tensor> trained, int rank)
    : parameters_(std::move(parameters)),
      is_complete_(parameters_.tensors.size(), false),
      had_gradient_(parameters_.tensors.size(), false),
      trained_(std::move(trained)),
      rank_(rank) {
  for (std::size_t i = 0; i < parameters_.tensors.size(); ++i) {
    places_.emplace(parameters_.tensors[i].unsafeGetTensorImpl(), i);
  }
  Promised& promised = Promised::of_process();
  const std::lock_guard lock(promised.mutex);
  for (const at::Tensor& tensor : trained_) promised.ranks[tensor.unsafeGetTensorImpl()] = rank_;
}

GradientPromise::~GradientPromise() {
  Promised& promised = Promised::of_process();
  const std::lock_guard lock(promised.mutex);
  for (const at::Tensor& tensor : trained_) promised.ranks.erase(tensor.unsafeGetTensorImpl());
}

std::size_t GradientPromise::index_of(const at::Tensor& parameter) const {
  const auto found = places_.find(parameter.unsafeGetTensorImpl());
  return found == places_.end() ? parameters_.tensors.size() : found->second;
}

std::vector<std::size_t> GradientPromise::complete(const std::vector<at::Tensor>& parameters) {
  std::vector<std::size_t> places;
  for (const at::Tensor& parameter : parameters) {
    const std::size_t index = index_of(parameter);
    if (index == parameters_.tensors.size()) {
      throw ConfigError("complete() was given a tensor that is no parameter of the model" + at_rank(rank_) +
                        ": name those of the module, as `block->parameters()` does");
    }
    // A parameter that the model holds in several places may be named several times.
    if (parameter.requires_grad() && !is_complete_[index]) places.push_back(index);
  }
  // Changes nothing before all tensors are known to be parameters.
  std::vector<std::size_t> once;
  for (const std::size_t index : places) {
    if (is_complete_[index]) continue;
    is_complete_[index] = true;
    had_gradient_[index] = parameters_.tensors[index].grad().defined();
    once.push_back(index);
  }
  return once;
}

std::vector<std::size_t> GradientPromise::complete_rest() {
  std::vector<at::Tensor> rest;
  for (std::size_t i = 0; i < is_complete_.size(); ++i) {
    if (!is_complete_[i]) rest.push_back(parameters_.tensors[i]);
  }
  return complete(rest);
}

bool GradientPromise::is_complete(const at::Tensor& parameter) const {
  const std::size_t index = index_of(parameter);
  return index < is_complete_.size() && is_complete_[index];
}

void GradientPromise::require_open(const at::Tensor& parameter) const {
  if (!is_complete(parameter)) return;
  throw ConfigError("a gradient of " + parameters_.names[index_of(parameter)] + " came after complete() had named it" +
                    at_rank(rank_) +
                    ": its average is on its way without that one. Name a parameter after its last backward");
}

void GradientPromise::require_kept() const {
  if (has_failed_) {
    throw ConfigError("a backward pass failed while gradients were promised" + at_rank(rank_) +
                      ": what came of the step is not all of it. Drop the PromisedGradients, then run the step again");
  }
  if (was_written_) refuse_write();
  for (std::size_t i = 0; i < had_gradient_.size(); ++i) {
    if (!had_gradient_[i] || parameters_.tensors[i].grad().defined()) continue;
    throw ConfigError("the gradient of " + parameters_.names[i] + " was cleared after complete() had named it" +
                      at_rank(rank_) + ": its average is on its way. Call zero_grad() before a step or after finish()");
  }
}

void GradientPromise::refuse_write() const {
  throw ConfigError("parameters were written to while their gradients were promised" + at_rank(rank_) +
                    ": an optimizer that steps then takes what this rank has alone. Call finish() before it");
}

void refuse_promise(const std::string& why, int rank) {
  throw ConfigError("promise_gradients() is refused" + at_rank(rank) + ": " + why);
}

void require_promise_possible(bool is_reproducible, bool is_promised, int rank) {
  if (is_reproducible) refuse_promise("reproducible mode adds up the micro-batches of a step itself", rank);
  if (is_promised) refuse_promise("there is one already; finish() it first", rank);
}

void refuse_promise_in_backward(const std::string& what, int rank) {
  throw ConfigError(what + " was called inside a backward pass" + at_rank(rank) + ": call it when that has returned");
}

void require_no_promise(const std::vector<at::Tensor>& trained, const std::string& what) {
  Promised& promised = Promised::of_process();
  const std::lock_guard lock(promised.mutex);
  for (const at::Tensor& tensor : trained) {
    const auto found = promised.ranks.find(tensor.unsafeGetTensorImpl());
    if (found == promised.ranks.end()) continue;
    throw ConfigError(what + " looks at gradients while they are promised" + at_rank(found->second) +
                      ": they are what this rank has alone. Call finish() of the PromisedGradients first");
  }
}

}  // namespace tessera::shard
