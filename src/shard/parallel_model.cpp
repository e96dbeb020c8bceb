#include <tessera/core/error.h>
#include <tessera/shard/parallel_model.h>

#include <torch/nn/module.h>

#include <utility>

namespace tessera {
namespace {

/// A module that one rank has alone.
class PlainModel : public shard::ModelState {
 public:
  explicit PlainModel(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  const std::shared_ptr<torch::nn::Module>& module() const override { return module_; }
  std::vector<ModelAxis> axes() const override {
    shard::require_uncut(*module_, "a model in one process");
    return {};
  }
  std::vector<TrainedTensor> trained() const override { return shard::whole_parameters(*module_, 0); }
  std::vector<StateSlice> state_slices() const override { return shard::whole_state(*module_); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

std::shared_ptr<shard::ModelState> state_of(const std::shared_ptr<torch::nn::Module>& model) {
  if (!model) throw ConfigError("there is no model: the pointer is null");
  if (auto shared = shard::find_shared(*model)) return shared;
  return std::make_shared<PlainModel>(model);
}

}  // namespace

NoSync::NoSync(const ParallelModel& model) : model_(model.model_state()) { model_->enter_no_sync(); }
NoSync::~NoSync() { model_->leave_no_sync(); }

PromisedGradients::PromisedGradients(const ParallelModel& model) : model_(model.model_state()) {
  model_->promise_gradients();
}
PromisedGradients::~PromisedGradients() {
  if (!finished_) model_->break_promise();
}

void PromisedGradients::complete(const std::vector<at::Tensor>& parameters) {
  if (finished_) throw ConfigError("complete() was called after finish(): the gradients are averages already");
  model_->complete_gradients(parameters);
}

void PromisedGradients::finish() {
  if (finished_) return;
  model_->finish_gradients();
  finished_ = true;
}

Whole::Whole(const ParallelModel& model, const GatherOptions& options)
    : model_(model.model_state()), options_(options) {
  model_->hold(options_);
}
Whole::~Whole() { model_->let_go(options_); }

ParallelModel::ParallelModel(const std::shared_ptr<torch::nn::Module>& model) : state_(state_of(model)) {}
ParallelModel::ParallelModel(std::shared_ptr<shard::ModelState> state) : state_(std::move(state)) {}

std::vector<at::Tensor> ParallelModel::parameters() const {
  std::vector<at::Tensor> tensors;
  for (TrainedTensor& trained : state_->trained()) tensors.push_back(std::move(trained.tensor));
  return tensors;
}

std::vector<std::pair<std::string, at::Tensor>> ParallelModel::named_parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (TrainedTensor& trained : state_->trained()) {
    named.emplace_back(std::move(trained.name), std::move(trained.tensor));
  }
  return named;
}

std::int64_t count_parameters(const ParallelModel& model) {
  std::int64_t count = 0;
  for (const StateSlice& slice : model.state_slices()) {
    if (!slice.is_buffer) count += slice.slice.num_tensor_elements();
  }
  return count;
}

}  // namespace tessera
