#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/schedule/pipeline_schedule.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "pipeline/chunk_run.h"

namespace tessera::pp {

/// The connections between this rank and others, one for each direction, so that a message that is awaited holds up
/// none that is sent. Messages of a direction are received in the order in which they are sent.
class Channels {
 public:
  explicit Channels(Communicator comm) : comm_(std::move(comm)) {}

  int rank() const { return comm_.rank(); }
  const Communicator& comm() const { return comm_; }
  Work send(int to, const at::Tensor& tensor);
  Work receive(int from, const at::Tensor& tensor);

 private:
  const Communicator& channel(int from, int to);

  Communicator comm_;
  std::map<std::pair<int, int>, Communicator> channels_;
};

/// Note [What a message carries]
/// The values that cross from a stage to the next, in the order of the plan, each in the order of its memory if it has
/// no gaps. Gradients go back in the same way, with a flag for each: one that nobody computed is no zero, since a
/// parameter without a gradient is not changed by an optimizer. They keep the strides that backward gave them, often
/// not those of the value: kernels add up in the order of the strides, so with others they would round otherwise.
///
/// Messages that leave this rank. They do not wait.
class Outbox {
 public:
  explicit Outbox(Channels& channels) : channels_(&channels) {}

  /// One-dimensional.
  void send(int to, const at::Tensor& tensor);
  void send_values(int to, const std::vector<CrossingValue>& values, const std::vector<at::Tensor>& tensors);
  /// Undefined ones are allowed.
  void send_gradients(int to, const std::vector<CrossingValue>& values, const std::vector<at::Tensor>& gradients);
  /// Blocks: until all have left.
  void wait();

 private:
  Channels* channels_;
  std::deque<Work> under_way_;
};

/// A message that is being received.
class Incoming {
 public:
  Incoming(Channels& channels, int from, const std::vector<CrossingValue>& values, bool are_gradients);
  /// Blocks: until all of it is there.
  std::vector<at::Tensor> take();

 private:
  void lay_out_gradients();

  std::vector<at::Tensor> tensors_;
  std::vector<Shape> shapes_;
  at::Tensor layouts_;  // of gradients: which are defined, and their strides
  std::vector<Work> works_;
};

/// Messages that come to this rank, some of them before they are needed.
class Inbox {
 public:
  /// What a message carries, in the words of the plan of its micro-batch.
  using ValuesOf = std::function<const std::vector<CrossingValue>&(const PipelineMessage& message)>;

  Inbox(Channels& channels, const PipelineSchedule& schedule, ValuesOf values_of, std::size_t ahead);

  /// Blocks: until it is there. Gradients may be undefined. Requires: each message once.
  std::vector<at::Tensor> take(int from, const PipelineMessage& message);

 private:
  struct Posted {
    PipelineMessage message;
    Incoming incoming;
  };
  struct Peer {
    std::vector<PipelineMessage> coming;  // in the order in which the peer sends them
    std::size_t num_posted = 0;
    std::deque<Posted> posted;
  };

  void post_next(int from, Peer& peer);

  Channels* channels_;
  ValuesOf values_of_;
  std::size_t ahead_;
  std::map<int, Peer> peers_;
};

/// One that was sent by send_values(), alone. Blocks: until it is there.
at::Tensor receive_value(Channels& channels, int from, const CrossingValue& value);
/// One that was sent by send_gradients(), alone. Blocks: until it is there.
at::Tensor receive_gradient(Channels& channels, int from, const CrossingValue& value);

}  // namespace tessera::pp
