#include "parity/training.h"

#include <tessera/data_parallel/distributed_data_parallel.h>

#include <torch/optim.h>

#include <sstream>

#include "support/require.h"
#include "support/sum_hook.h"

namespace tessera::testing {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const torch::nn::Module& model) {
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(model.parameters(), torch::optim::AdamWOptions(0.01));
}

/// BatchNorm's running statistics are rank 0's: those of the other parts are dropped.
class KeptBuffers {
 public:
  explicit KeptBuffers(torch::nn::Module& model) : buffers_(model.buffers()) {
    for (const auto& buffer : buffers_) values_.push_back(buffer.clone());
  }
  void restore() {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(values_[i]);
  }

 private:
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> values_;
};

DdpOptions options_of(const std::string& variant, const ParityCase& parity) {
  DdpOptions options;
  if (variant == "small buckets") options.bucket_bytes(512).first_bucket_bytes(128);
  if (variant == "own gradients") options.gradient_as_bucket_view(false);
  if (variant == "find unused") options.find_unused_parameters(true);
  if (variant == "static graph") options.static_graph(true).bucket_bytes(512);
  if (variant == "delayed") options.delay_all_reduce(true);
  if (variant == "no buffers") options.broadcast_buffers(false);
  if (variant == "no init") options.init_sync(false);
  if (variant == "divided hook") options.hook(std::make_shared<SumHook>()).bucket_bytes(512);
  if (variant == "divided unused") options.hook(std::make_shared<SumHook>()).find_unused_parameters(true);
  if (variant == "reproducible") {
    options.reproducible(true).micro_batches(std::int64_t{parity.num_ranks} * parity.micro_batches);
  }
  return options;
}

/// The gradients of one step, averaged over ranks and micro-batches.
template <class Forward>
void run_step(ParityModel& model, const ParityCase& parity, int step, int rank, const DistributedModel& handle,
              bool accumulates_itself, bool averages_first, const Forward& forward) {
  for (int micro = 0; micro < parity.micro_batches; ++micro) {
    const int part = rank * parity.micro_batches + micro;
    const auto backward = [&] {
      auto loss = model.loss(forward(model.input(step, part).to(device_of(parity.device_type, rank))), step, part);
      // Reproducible mode averages over the micro-batches itself.
      (accumulates_itself ? loss : loss / parity.micro_batches).backward();
    };
    const bool is_first = averages_first && micro == 0;
    if (micro + 1 < parity.micro_batches && !accumulates_itself && !is_first) {
      const auto guard = handle.no_sync();
      backward();
    } else {
      backward();
    }
  }
}

}  // namespace

std::string ParityCase::text() const {
  std::ostringstream text;
  text << model << ", " << optimizer << ", " << torch::toString(dtype) << ", " << num_ranks << " ranks, "
       << micro_batches << " micro-batches";
  return text.str();
}

State state_of(const torch::nn::Module& model) {
  State state;
  const auto copy = [](const torch::Tensor& tensor) { return tensor.detach().to(torch::kCPU, false, /*copy=*/true); };
  for (const auto& entry : model.named_parameters()) state[entry.key()] = copy(entry.value());
  for (const auto& entry : model.named_buffers()) state["buffer " + entry.key()] = copy(entry.value());
  return state;
}

State train_alone(const ParityCase& parity) {
  const auto model = make_parity_model(parity.model, parity.dtype);
  const auto optimizer = make_optimizer(parity.optimizer, *model);
  const int num_parts = parity.num_ranks * parity.micro_batches;
  for (int step = 0; step < parity.num_steps; ++step) {
    optimizer->zero_grad();
    std::unique_ptr<KeptBuffers> of_rank_0;
    for (int part = 0; part < num_parts; ++part) {
      (model->loss(model->forward(model->input(step, part)), step, part) / num_parts).backward();
      if (part + 1 == parity.micro_batches) of_rank_0 = std::make_unique<KeptBuffers>(*model);
    }
    of_rank_0->restore();
    optimizer->step();
  }
  return state_of(*model);
}

const std::vector<std::string>& parity_variants() {
  static const std::vector<std::string> names{
      "plain",   "small buckets", "own gradients",  "find unused", "static graph",  "delayed",     "no buffers",
      "no init", "divided hook",  "divided unused", "wrapper",     "other buckets", "reproducible"};
  return names;
}

State train_distributed(const ParityCase& parity, const std::string& variant, const Communicator& comm) {
  const auto model = make_parity_model(parity.model, parity.dtype);
  model->to(device_of(parity.device_type, comm.rank()));
  if (variant != "no init" && comm.rank() > 0) {
    // What rank 0 broadcasts at the start must replace this.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(100 + comm.rank());
  }
  const auto options = options_of(variant, parity);
  std::unique_ptr<DistributedDataParallel<ParityModel>> wrapper;
  if (variant == "wrapper") wrapper = std::make_unique<DistributedDataParallel<ParityModel>>(model, comm, options);
  const DistributedModel handle = wrapper ? wrapper->handle() : distribute(model, comm, options);
  const auto optimizer = make_optimizer(parity.optimizer, *model);
  for (int step = 0; step < parity.num_steps; ++step) {
    optimizer->zero_grad();
    if ((variant == "other buckets" || variant == "divided hook") && step == 5) handle.set_bucket_bytes(600);
    const auto forward = [&](const torch::Tensor& input) {
      return wrapper ? wrapper->forward(input) : model->forward(input);
    };
    // A static graph is learnt in the first pass, so that one is averaged.
    const bool averages_first = variant == "static graph" && step == 0;
    run_step(*model, parity, step, comm.rank(), handle, options.reproducible(), averages_first, forward);
    optimizer->step();
  }
  handle.sync_buffers();
  return state_of(*model);
}

void require_equal(const State& found, const State& expected, const ParityCase& parity, const std::string& what) {
  require_equal(found.size(), expected.size(), what + ": other tensors");
  for (const auto& [name, value] : expected) {
    const auto difference = (found.at(name) - value).abs().max().item<double>();
    const auto largest = value.abs().max().item<double>();
    std::ostringstream text;
    text << what << " (" << parity.text() << "): " << name << " differs by " << difference << ", its largest value is "
         << largest;
    require(difference <= parity.tolerance() * std::max(largest, 1e-30), text.str());
  }
}

}  // namespace tessera::testing
