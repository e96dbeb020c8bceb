#include "tensor/hand_written.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace bench {
namespace {

using tessera::Communicator;
using tessera::ReduceOp;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Communicators are no tensors: functions reach theirs through a pointer that outlives the step.
const Communicator& comm_of(AutogradContext* context) {
  return *reinterpret_cast<const Communicator*>(context->saved_data["comm"].toInt());
}

void keep(AutogradContext* context, const Communicator& comm) {
  context->saved_data["comm"] = reinterpret_cast<std::int64_t>(&comm);
}

/// Into layers that are cut by columns: each rank's gradient is a part of the sum.
struct Enter : Function<Enter> {
  static Variable forward(AutogradContext* context, const Variable& x, const Communicator* comm) {
    keep(context, *comm);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor sum = gradients[0].contiguous();
    comm_of(context).all_reduce(sum);
    return {sum, {}};
  }
};

/// Out of layers that are cut by rows.
struct Sum : Function<Sum> {
  static Variable forward(AutogradContext* /*context*/, const Variable& part, const Communicator* comm) {
    comm->all_reduce(part);
    return part;
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], {}};
  }
};

/// The mean cross entropy of logits whose columns are cut.
struct CutCrossEntropy : Function<CutCrossEntropy> {
  static Variable forward(AutogradContext* context, const Variable& logits, const at::Tensor& targets,
                          const Communicator* comm) {
    const std::int64_t width = logits.size(1);
    const at::Tensor largest = logits.amax(1, /*keepdim=*/true);
    comm->all_reduce(largest, ReduceOp::kMax);
    at::Tensor share = (logits - largest);
    const at::Tensor place = targets - comm->rank() * width;
    const at::Tensor is_here = place.ge(0).logical_and_(place.lt(width));
    const at::Tensor column = place.clamp(0, width - 1).unsqueeze(1);
    const at::Tensor picked = share.gather(1, column).squeeze(1) * is_here;
    share.exp_();
    const at::Tensor sums = at::stack({share.sum(1), picked});
    comm->all_reduce(sums);
    share.div_(sums[0].unsqueeze(1));
    context->save_for_backward({share, column, is_here});
    return (sums[0].log() - sums[1]).mean();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor gradient = saved[0];  // of this step alone, so written into
    const at::Tensor& column = saved[1];
    gradient.scatter_add_(1, column, -saved[2].to(gradient.scalar_type()).unsqueeze(1));
    return {gradient.mul_(gradients[0] / gradient.size(0)), {}, {}};
  }
};

at::Tensor find(const torch::nn::Module& module, const char* name) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* const found = parameters.find(name);
  return found ? found->detach() : at::Tensor();
}

}  // namespace

HandWrittenGpt::HandWrittenGpt(const Gpt& whole, const GptShape& shape, const Communicator& comm)
    : shape_(shape), comm_(comm) {
  const auto modules = whole->named_modules("", /*include_self=*/false);
  tokens_ = kept(find(*modules["tokens"], "weight"));
  positions_ = kept(find(*modules["positions"], "weight"));
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = "blocks." + std::to_string(i) + ".";
    const auto module = [&](const char* name) -> const torch::nn::Module& { return *modules[prefix + name]; };
    blocks_.push_back({norm(module("norm1")), columns(module("attention.query")), columns(module("attention.key")),
                       columns(module("attention.value")), rows(module("attention.out")), norm(module("norm2")),
                       columns(module("up")), rows(module("down"))});
  }
  norm_ = norm(*modules["norm"]);
  head_ = columns(*modules["head"]).weight;
}

at::Tensor HandWrittenGpt::kept(const at::Tensor& part) {
  if (!part.defined()) return part;
  parameters_.push_back(part.clone(at::MemoryFormat::Contiguous).requires_grad_());
  return parameters_.back();
}

HandWrittenGpt::Linear HandWrittenGpt::columns(const torch::nn::Module& linear) {
  const auto mine = [&](const at::Tensor& all) { return all.defined() ? all.chunk(comm_.size())[comm_.rank()] : all; };
  return {kept(mine(find(linear, "weight"))), kept(mine(find(linear, "bias")))};
}

HandWrittenGpt::Linear HandWrittenGpt::rows(const torch::nn::Module& linear) {
  return {kept(find(linear, "weight").chunk(comm_.size(), 1)[comm_.rank()]), kept(find(linear, "bias"))};
}

HandWrittenGpt::Norm HandWrittenGpt::norm(const torch::nn::Module& norm) {
  return {kept(find(norm, "weight")), kept(find(norm, "bias"))};
}

at::Tensor HandWrittenGpt::normalised(const Norm& norm, const at::Tensor& x) const {
  return at::layer_norm(x, {shape_.width}, norm.weight, norm.bias);
}

at::Tensor HandWrittenGpt::summed(const Linear& linear, const at::Tensor& x) const {
  return Sum::apply(at::linear(x, linear.weight), &comm_) + linear.bias;
}

at::Tensor HandWrittenGpt::attention(const Block& block, const at::Tensor& x) const {
  const at::Tensor entered = Enter::apply(x, &comm_);
  const auto heads = [&](const Linear& linear) {
    return at::linear(entered, linear.weight, linear.bias)
        .view({x.size(0), x.size(1), shape_.heads / comm_.size(), shape_.width / shape_.heads})
        .transpose(1, 2);
  };
  const at::Tensor mixed = at::scaled_dot_product_attention(heads(block.query), heads(block.key), heads(block.value),
                                                            /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return summed(block.out, mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}));
}

at::Tensor HandWrittenGpt::logits(const at::Tensor& tokens) const {
  at::Tensor x = at::embedding(tokens_, tokens) + at::embedding(positions_, at::arange(tokens.size(1)));
  for (const Block& block : blocks_) {
    const at::Tensor attended = x + attention(block, normalised(block.norm1, x));
    const at::Tensor entered = Enter::apply(normalised(block.norm2, attended), &comm_);
    x = attended + summed(block.down, at::gelu(at::linear(entered, block.up.weight, block.up.bias), "tanh"));
  }
  return at::linear(Enter::apply(normalised(norm_, x), &comm_), head_);
}

at::Tensor HandWrittenGpt::loss(const Batch& batch) const {
  const at::Tensor all = logits(batch.tokens);
  return CutCrossEntropy::apply(all.view({-1, all.size(-1)}), batch.targets, &comm_);
}

}  // namespace bench
