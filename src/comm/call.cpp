#include "comm/call.h"

#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/hang_report.h>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::comm {
namespace {

constexpr std::int64_t kNoteBytes = 1024;

at::Tensor note_of(const std::string& text) {
  const at::Tensor note = at::zeros({kNoteBytes}, at::kByte);
  std::memcpy(note.mutable_data_ptr(), text.data(), std::min<std::size_t>(text.size(), kNoteBytes - 1));
  return note;
}

std::vector<flight::RankStatus> exchange(Group& group, const CallRecord& call) {
  flight::Snapshot own;
  own.groups.push_back({group.name(), group.size(), group.ranks()});
  own.calls.push_back(call);
  at::Tensor mine = note_of(flight::to_json(own));
  at::Tensor all = at::empty({kNoteBytes * group.size()}, at::kByte);
  group.backend(CommunicationStrategy::kBackend, kNoteBytes)._allgather_base(all, mine, {})->wait(kNoTimeout);
  std::vector<flight::RankStatus> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    flight::RankStatus status;
    status.rank = group.ranks()[static_cast<std::size_t>(rank)];
    status.snapshot = flight::snapshot_from_json(
        reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>() + kNoteBytes * rank));
    // The members' counters may differ by a call that one skipped. Only the calls they are about to make are compared.
    status.snapshot->calls.front().sequence = call.sequence;
    ranks.push_back(std::move(status));
  }
  return ranks;
}

}  // namespace

void require_agreement(Group& group, const CallRecord& call) {
  const auto report = flight::analyse("", true, 0, group.size(), exchange(group, call));
  if (report.findings.empty()) return;
  const flight::Finding& finding = report.findings.front();
  std::string text = finding.what;
  for (const std::string& detail : finding.details) text += "; " + detail;
  throw ConfigError(text + "; " + finding.advice);
}

Call::Call(std::shared_ptr<Group> group, const char* operation, const at::Tensor& about,
           std::chrono::milliseconds timeout, const std::source_location& where, int peer)
    : state_(std::make_shared<Work::State>()) {
  state_->kept.reserve(2);  // what most calls keep
  state_->operation = operation;
  state_->where = where;
  state_->timeout = timeout;
  is_collective_ = state_->is_collective();
  flight::CallStart call;
  call.is_collective = is_collective_;
  state_->sequence = group->next_sequence(is_collective_);
  call.group = group->recorded_as();
  call.sequence = state_->sequence;
  call.operation = operation;
  if (peer >= 0 && peer < group->size()) call.peer = group->ranks()[static_cast<std::size_t>(peer)];
  call.where = where;
  if (about.defined()) {
    about_ = about;
    call.dtype = c10::toString(about.scalar_type());
    call.shape = {about.sizes().data(), about.sizes().size()};
  }
  state_->group = std::move(group);
  flight::Recorder& recorder = *state_->group->world().recorder;
  if (recorder.is_heard()) began_ns_ = flight::now_ns();
  state_->ticket = recorder.begin(call);
}

void Call::prepare() const {
  const WorldContext& world = state_->group->world();
  if (const auto verdict = world.verdict()) throw CommError(*verdict);
  if (!world.checked || !is_collective_ || state_->group->size() == 1) return;
  CallRecord call;
  call.sequence = state_->sequence;
  call.group = state_->group->name();
  call.operation = state_->operation;
  call.file = state_->where.file_name();
  call.line = state_->where.line();
  if (about_.defined()) {
    call.dtype = c10::toString(about_.scalar_type());
    call.shape = about_.sizes().vec();
  }
  require_agreement(*state_->group, call);
}

void Call::note_when_done() {
  if (!state_->work || !state_->group->world().recorder->is_heard()) return;
  const auto done_ns = std::make_shared<std::atomic<std::int64_t>>(0);
  state_->done_ns = done_ns;
  if (state_->work->isCompleted()) {
    *done_ns = flight::now_ns();
    return;
  }
  state_->work->getFuture()->addCallback([done_ns](c10::ivalue::Future& /*done*/) { *done_ns = flight::now_ns(); });
}

void Call::follow_on_device() {
  state_->on_device = true;
  // Not the state: it keeps the group, which keeps the world, whose thread asks.
  state_->group->world().follow_device_calls().follow(state_->ticket, state_->work, about_.device(), state_->timeout,
                                                      [words = state_->describe()] { return words; });
}

void Call::note_begun() {
  if (!is_collective_) state_->group->world().recorder->set_awaited(state_->ticket, false);
  if (began_ns_ != 0) state_->blocked_ns = flight::now_ns() - began_ns_;
}

Call& Call::keep(at::Tensor tensor) {
  state_->kept.push_back(std::move(tensor));
  return *this;
}

at::Tensor Call::lend(const at::Tensor& tensor) {
  keep(tensor);
  if (tensor.device().is_cpu() || tensor.is_meta() || tensor.numel() == 0) return tensor;
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
}

std::vector<at::Tensor> Call::lend(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = lend(tensor);
  return tensors;
}

Call& Call::result(at::Tensor tensor) {
  state_->result = std::move(tensor);
  return *this;
}

Call& Call::then(std::function<void()> finish) {
  state_->finish = std::move(finish);
  return *this;
}

void Call::refuse(const std::string& reason) {
  try {
    throw ConfigError(reason);
  } catch (...) {
    state_->rethrow();
  }
}

Communicator::Sizes checked_sizes(Call& call, const Communicator::Sizes& sizes, int num_ranks, std::int64_t total) {
  if (sizes.empty()) {
    if (total % num_ranks != 0) {
      call.refuse("expected an extent that " + std::to_string(num_ranks) + " ranks share equally, found " +
                  std::to_string(total) + "; pass the size of each rank's piece");
    }
    return Communicator::Sizes(static_cast<std::size_t>(num_ranks), total / num_ranks);
  }
  if (static_cast<int>(sizes.size()) != num_ranks) {
    call.refuse("expected one size for each of " + std::to_string(num_ranks) + " ranks, found " +
                std::to_string(sizes.size()));
  }
  const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (sum != total) {
    call.refuse("the sizes add up to " + std::to_string(sum) + ", the tensor has " + std::to_string(total) +
                " along that dimension");
  }
  return sizes;
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
  }
  throw InternalError("an unknown reduction");
}

}  // namespace tessera::comm
