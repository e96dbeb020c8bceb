#include "data_parallel/flat_parameters.h"

#include <tessera/core/digest.h>
#include <tessera/core/error.h>
#include <tessera/intercept/acting_tensor.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tessera::data_parallel {

std::vector<at::Tensor> gradients_in(const at::Tensor& buffer, const std::vector<at::Tensor>& parameters) {
  const bool is_complex = !parameters.empty() && parameters[0].is_complex();
  const at::Tensor numbers = is_complex ? at::view_as_complex(buffer.view({-1, 2})) : buffer;
  std::vector<at::Tensor> gradients;
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor piece = numbers.narrow(0, begin, parameter.numel());
    gradients.push_back(parameter.is_non_overlapping_and_dense()
                            ? piece.as_strided(parameter.sizes(), parameter.strides(), piece.storage_offset())
                            : piece.view(parameter.sizes()));
    begin += parameter.numel();
  }
  if (begin != numbers.numel()) {
    throw InternalError("a bucket of gradients has " + std::to_string(numbers.numel()) + " numbers, its parameters " +
                        std::to_string(begin));
  }
  return gradients;
}

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

FlatParameters::FlatParameters(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  for (const auto& parameter : parameters_) {
    if (intercept::holds_part(parameter)) {
      throw ConfigError(
          "a parameter is cut by tensor parallelism, and a Synchroniser needs all of it: use distribute()");
    }
    const auto options = at::TensorOptions().dtype(parameter.dtype()).device(parameter.device());
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& one) {
      return one.options.dtype() == options.dtype() && one.options.device() == options.device();
    });
    if (group == groups_.end()) group = groups_.insert(group, Group{options, 0});
    slots_.push_back({static_cast<std::size_t>(group - groups_.begin()), group->num_elements});
    group->num_elements += parameter.numel();
  }
}

std::int64_t FlatParameters::num_elements() const {
  std::int64_t sum = 0;
  for (const auto& group : groups_) sum += group.num_elements;
  return sum;
}

std::int64_t FlatParameters::fingerprint() const {
  Digest all;
  all.add(std::uint64_t{parameters_.size()});
  for (const auto& parameter : parameters_) {
    all.add(static_cast<std::uint64_t>(parameter.scalar_type()));
    for (const auto extent : parameter.sizes()) all.add(static_cast<std::uint64_t>(extent));
    all.add(static_cast<std::uint64_t>(parameter.dim()));
  }
  return all.positive();
}

FlatBuffers FlatParameters::make_buffers(const Communicator& comm) const {
  FlatBuffers buffers;
  buffers.reserve(groups_.size());
  for (const auto& group : groups_) buffers.push_back(comm.empty({group.num_elements}, group.options));
  return buffers;
}

at::Tensor FlatParameters::view_of(const FlatBuffers& buffers, std::size_t index) const {
  const auto& parameter = parameters_[index];
  const auto& slot = slots_[index];
  return buffers[slot.group].narrow(0, slot.offset, parameter.numel()).view(parameter.sizes());
}

void FlatParameters::read_gradients(const FlatBuffers& buffers) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor gradient = parameters_[i].grad();
    at::Tensor place = view_of(buffers, i);
    if (!gradient.defined()) {
      place.zero_();
    } else if (gradient.is_sparse()) {
      throw ConfigError("gradients that travel must be dense, and parameter " + std::to_string(i) +
                        " has a sparse one; make its layer with sparse(false)");
    } else {
      place.copy_(gradient);
    }
  }
}

void FlatParameters::write_gradients(const FlatBuffers& buffers) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    if (!gradient.defined()) gradient = at::empty_like(parameters_[i]);
    gradient.copy_(view_of(buffers, i));
  }
}

void FlatParameters::read_values(const FlatBuffers& buffers) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) view_of(buffers, i).copy_(parameters_[i]);
}

void FlatParameters::write_values(const FlatBuffers& buffers) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) at::Tensor(parameters_[i]).copy_(view_of(buffers, i));
}

}  // namespace tessera::data_parallel
