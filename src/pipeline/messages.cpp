#include "pipeline/messages.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

namespace tessera::pp {
namespace {

/// Whether its elements fill its memory, in some order.
bool is_dense(const Shape& shape) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (std::size_t i = 0; i < shape.sizes.size(); ++i) {
    if (shape.sizes[i] == 0) return false;
    if (shape.sizes[i] > 1) dims.emplace_back(shape.strides[i], shape.sizes[i]);
  }
  std::ranges::sort(dims);
  std::int64_t next = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != next) return false;
    next = stride * size;
  }
  return true;
}

at::TensorOptions options_of(const Shape& shape) { return at::TensorOptions().dtype(shape.dtype).device(shape.device); }

at::Tensor memory_for(const Shape& shape) {
  if (is_dense(shape)) return at::empty_strided(shape.sizes, shape.strides, options_of(shape));
  return at::empty(shape.sizes, options_of(shape));
}

/// All of its memory, one-dimensional. Requires: made by memory_for().
at::Tensor flat(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_contiguous()) return tensor.view({-1});
  return tensor.as_strided({tensor.numel()}, {1});
}

/// A tensor with gaps, or with elements that lie in one place, arrives without: programs and kernels see its strides.
at::Tensor as_it_lay(at::Tensor arrived, const Shape& shape) {
  if (is_dense(shape) || arrived.strides() == at::IntArrayRef(shape.strides)) return arrived;
  std::vector<std::int64_t> sizes = shape.sizes;
  at::Tensor part = arrived;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (shape.strides[d] != 0 || sizes[d] < 2) continue;
    sizes[d] = 1;
    part = part.narrow(static_cast<std::int64_t>(d), 0, 1);
  }
  const at::Tensor memory = at::empty_strided(sizes, shape.strides, options_of(shape)).copy_(part);
  return memory.expand(shape.sizes);
}

at::Tensor as_sent(const at::Tensor& tensor, const Shape& shape) {
  if (tensor.sizes() != at::IntArrayRef(shape.sizes) || tensor.scalar_type() != shape.dtype) {
    throw InternalError("a value crosses that is not what was agreed on");
  }
  const at::Tensor held = tensor.detach().resolve_conj().resolve_neg();
  const bool fits = is_dense(shape) ? held.strides() == at::IntArrayRef(shape.strides) : held.is_contiguous();
  if (fits) return flat(held);
  at::Tensor copy = memory_for(shape);
  copy.copy_(held);
  return flat(copy);
}

std::size_t num_with_gradient(const std::vector<CrossingValue>& values) {
  return static_cast<std::size_t>(
      std::ranges::count_if(values, [](const auto& one) { return one.shape.requires_grad; }));
}

/// For each value: whether there is a gradient, and its strides.
std::int64_t num_layout_numbers(const std::vector<CrossingValue>& values) {
  std::int64_t count = 0;
  for (const CrossingValue& one : values) count += 1 + static_cast<std::int64_t>(one.shape.sizes.size());
  return count;
}

}  // namespace

const Communicator& Channels::channel(int from, int to) {
  const auto known = channels_.find({from, to});
  if (known != channels_.end()) return known->second;
  const std::string name = comm_.name() + " stage " + std::to_string(from) + ">" + std::to_string(to);
  return channels_.emplace(std::pair(from, to), comm_.split({from, to}, name)).first->second;
}

Work Channels::send(int to, const at::Tensor& tensor) { return channel(rank(), to).send_async(tensor, 1); }
Work Channels::receive(int from, const at::Tensor& tensor) { return channel(from, rank()).recv_async(tensor, 0); }

void Outbox::send(int to, const at::Tensor& tensor) {
  while (!under_way_.empty() && under_way_.front().is_completed()) {
    under_way_.front().wait();
    under_way_.pop_front();
  }
  if (tensor.numel() > 0) under_way_.push_back(channels_->send(to, tensor));
}

void Outbox::send_values(int to, const std::vector<CrossingValue>& values, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) send(to, as_sent(tensors[i], values[i].shape));
}

namespace {

/// A gradient has the sizes of its value; a custom function may give it another type.
at::Tensor gradient_as(const at::Tensor& gradient, const Shape& shape) {
  return gradient.to(shape.dtype).expand(shape.sizes);
}

}  // namespace

void Outbox::send_gradients(int to, const std::vector<CrossingValue>& values,
                            const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  if (num_with_gradient(values) == 0) return;
  const at::Tensor layouts = at::zeros({num_layout_numbers(values)}, at::kLong);
  auto* layout = layouts.data_ptr<std::int64_t>();
  std::vector<at::Tensor> sent;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Shape shape = values[i].shape;
    if (gradients[i].defined()) {
      const at::Tensor gradient = gradient_as(gradients[i], shape);
      shape.strides = gradient.strides().vec();
      *layout = 1;
      std::ranges::copy(shape.strides, layout + 1);
      if (shape.requires_grad) sent.push_back(as_sent(gradient, shape));
    } else if (shape.requires_grad) {
      sent.push_back(flat(memory_for(shape).zero_()));
    }
    layout += 1 + shape.sizes.size();
  }
  send(to, layouts);
  for (const at::Tensor& one : sent) send(to, one);
}

void Outbox::wait() {
  for (Work& work : under_way_) work.wait();
  under_way_.clear();
}

Inbox::Inbox(Channels& channels, const PipelineSchedule& schedule, ValuesOf values_of, std::size_t ahead)
    : channels_(&channels), values_of_(std::move(values_of)), ahead_(ahead) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    for (const PipelineOperation& operation : schedule.operations[static_cast<std::size_t>(rank)]) {
      if (operation.is_send() && operation.peer == channels.rank()) peers_[rank].coming.push_back(operation.message());
    }
  }
}

Incoming::Incoming(Channels& channels, int from, const std::vector<CrossingValue>& values, bool are_gradients) {
  if (are_gradients && num_with_gradient(values) > 0) {
    layouts_ = at::empty({num_layout_numbers(values)}, at::kLong);
    works_.push_back(channels.receive(from, layouts_));
  }
  for (const CrossingValue& one : values) {
    tensors_.emplace_back();
    shapes_.push_back(one.shape);
    if (are_gradients && !one.shape.requires_grad) continue;
    tensors_.back() = are_gradients ? at::empty(one.shape.sizes, options_of(one.shape)) : memory_for(one.shape);
    const at::Tensor memory = flat(tensors_.back());
    if (memory.numel() > 0) works_.push_back(channels.receive(from, memory));
  }
}

std::vector<at::Tensor> Incoming::take() {
  for (Work& work : works_) work.wait();
  if (layouts_.defined()) {
    lay_out_gradients();
  } else {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].defined()) tensors_[i] = as_it_lay(std::move(tensors_[i]), shapes_[i]);
    }
  }
  return std::move(tensors_);
}

void Incoming::lay_out_gradients() {
  const auto* layout = layouts_.data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    Shape& shape = shapes_[i];
    const auto num_dims = static_cast<std::ptrdiff_t>(shape.sizes.size());
    if (*layout == 0) {
      tensors_[i] = at::Tensor();
    } else if (tensors_[i].defined()) {
      shape.strides.assign(layout + 1, layout + 1 + num_dims);
      tensors_[i] = is_dense(shape) ? tensors_[i].as_strided(shape.sizes, shape.strides)
                                    : as_it_lay(std::move(tensors_[i]), shape);
    }
    layout += 1 + num_dims;
  }
}

at::Tensor receive_value(Channels& channels, int from, const CrossingValue& value) {
  return Incoming(channels, from, {value}, false).take().front();
}

at::Tensor receive_gradient(Channels& channels, int from, const CrossingValue& value) {
  const at::NoGradGuard no_grad;
  return Incoming(channels, from, {value}, true).take().front();
}

void Inbox::post_next(int from, Peer& peer) {
  const PipelineMessage& message = peer.coming[peer.num_posted++];
  peer.posted.push_back({message, Incoming(*channels_, from, values_of_(message), message.is_gradient)});
}

std::vector<at::Tensor> Inbox::take(int from, const PipelineMessage& message) {
  const at::NoGradGuard no_grad;
  Peer& peer = peers_[from];
  const auto is_it = [&message](const Posted& one) { return one.message == message; };
  while (std::ranges::none_of(peer.posted, is_it)) {
    if (peer.num_posted == peer.coming.size()) throw InternalError("a message is awaited that nobody sends");
    post_next(from, peer);
  }
  const auto place = std::ranges::find_if(peer.posted, is_it);
  Posted taken = std::move(*place);
  peer.posted.erase(place);
  while (peer.posted.size() < ahead_ && peer.num_posted < peer.coming.size()) post_next(from, peer);
  return taken.incoming.take();
}

}  // namespace tessera::pp
