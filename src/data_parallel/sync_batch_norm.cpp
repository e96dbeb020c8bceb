#include <tessera/core/error.h>
#include <tessera/data_parallel/sync_batch_norm.h>
#include <tessera/intercept/custom_node.h>

#include <torch/custom_class.h>
#include <torch/nn/functional/batchnorm.h>

#include <algorithm>

namespace tessera {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Shaped so that it broadcasts along the features of `like`, which are in dim 1.
Tensor along_features(const Tensor& vector, const Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[1] = vector.numel();
  return vector.view(shape);
}

Tensor sum_over_all_but_features(const Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return input.sum(dims);
}

/// Mean, variance and the number of values a feature, over all ranks. The number is a tensor of double, so that the
/// host need not wait for a device.
struct Moments {
  Tensor mean;
  Tensor variance;
  Tensor count;
};

double local_count_of(const Tensor& input) {
  return input.size(1) == 0 ? 0 : static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
}

Moments moments_of(const Tensor& input, const Communicator& comm) {
  const auto features = input.size(1);
  const double local_count = local_count_of(input);
  // Two passes, first the mean and then the squares around it: one pass would lose digits where the mean is large.
  const Tensor sums = at::cat({sum_over_all_but_features(input), at::full({1}, local_count, input.options())});
  comm.all_reduce(sums);
  const Tensor count = sums[features].to(torch::kDouble);
  const Tensor mean = sums.narrow(0, 0, features) / count;
  const Tensor squares = sum_over_all_but_features((input - along_features(mean, input)).square());
  comm.all_reduce(squares);
  return {mean, squares / count, count};
}

class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& input, const Tensor& mean,
                               const Tensor& inverse_deviation, const Tensor& count, const Communicator& comm) {
    const Tensor normalised = (input - along_features(mean, input)) * along_features(inverse_deviation, input);
    context->save_for_backward({normalised, inverse_deviation, count});
    const auto holder = std::make_shared<Communicator>(comm);
    context->saved_data["comm"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(holder));
    return {normalised};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& normalised = saved[0];
    const Tensor& inverse_deviation = saved[1];
    const Tensor& gradient = gradients[0];
    if (at::GradMode::is_enabled()) {
      throw ConfigError("SyncBatchNorm has no second derivative: backward with create_graph is refused");
    }
    const auto& comm = *dynamic_cast<Held*>(context->saved_data["comm"].toCapsule().get())->comm;
    const auto features = normalised.size(1);
    // Every rank's loss depends on mean and variance, so their gradients come from all ranks.
    const Tensor sums =
        at::cat({sum_over_all_but_features(gradient), sum_over_all_but_features(gradient * normalised)});
    comm.all_reduce(sums);
    const Tensor& count = saved[2];
    const Tensor mean_gradient = along_features(sums.narrow(0, 0, features) / count, normalised);
    const Tensor mean_product = along_features(sums.narrow(0, features, features) / count, normalised);
    const Tensor input_gradient =
        along_features(inverse_deviation, normalised) * (gradient - mean_gradient - normalised * mean_product);
    return {input_gradient, Tensor(), Tensor(), Tensor(), Tensor()};
  }

 private:
  /// A communicator that autograd keeps with the graph.
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<Communicator> held) : comm(std::move(held)) {}
    std::shared_ptr<Communicator> comm;
  };
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given, const Ranks& ranks)
    : torch::nn::Module("tessera::SyncBatchNorm"), options(given), comm_(ranks.comm()) {
  const auto features = options.num_features();
  weight = register_parameter("weight", options.affine() ? torch::empty({features}) : Tensor());
  bias = register_parameter("bias", options.affine() ? torch::empty({features}) : Tensor());
  const bool tracks = options.track_running_stats();
  running_mean = register_buffer("running_mean", tracks ? torch::zeros({features}) : Tensor());
  running_var = register_buffer("running_var", tracks ? torch::ones({features}) : Tensor());
  num_batches_tracked = register_buffer("num_batches_tracked", tracks ? torch::zeros({}, torch::kLong) : Tensor());
  reset();
}

void SyncBatchNormImpl::reset() {
  const torch::NoGradGuard no_grad;
  if (options.affine()) {
    weight.fill_(1);
    bias.zero_();
  }
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw ConfigError("expected an input of shape [batch, " + std::to_string(options.num_features()) +
                      ", ...], found " + c10::str(input.sizes()) + " (rank " + std::to_string(comm_.world_rank()) +
                      ")");
  }
  const bool uses_batch = is_training() || !options.track_running_stats();
  if (!uses_batch) {
    const auto settings = torch::nn::functional::BatchNormFuncOptions().weight(weight).bias(bias).eps(options.eps());
    return torch::nn::functional::batch_norm(input, running_mean, running_var, settings);
  }
  // Half precision would lose the count itself above a few hundred values.
  const Tensor values = input.to(input.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
  Moments moments;
  {
    const torch::NoGradGuard no_grad;
    moments = moments_of(values, comm_);
    // A rank with two values knows that there are enough, and so do all ranks: only with fewer the host must wait.
    if (local_count_of(values) < 2 && moments.count.item<double>() < 2) {
      throw ConfigError("batch norm in training needs more than one value a feature over all ranks");
    }
    if (is_training() && options.track_running_stats()) track(moments.mean, moments.variance, moments.count);
  }
  const Tensor inverse_deviation = (moments.variance + options.eps()).rsqrt();
  const Tensor normalised = Normalise::apply(values, moments.mean, inverse_deviation, moments.count, comm_)[0];
  const Tensor output =
      options.affine() ? normalised * along_features(weight, input) + along_features(bias, input) : normalised;
  return output.to(input.scalar_type());
}

void SyncBatchNormImpl::track(const Tensor& mean, const Tensor& variance, const Tensor& count) {
  num_batches_tracked.add_(1);
  const Tensor unbiased = variance * (count / (count - 1));
  if (options.momentum()) {
    running_mean.mul_(1 - *options.momentum()).add_(mean, *options.momentum());
    running_var.mul_(1 - *options.momentum()).add_(unbiased, *options.momentum());
    return;
  }
  const Tensor factor = 1.0 / num_batches_tracked.to(torch::kDouble);
  running_mean.mul_(1 - factor).add_(mean * factor);
  running_var.mul_(1 - factor).add_(unbiased * factor);
}

}  // namespace tessera
