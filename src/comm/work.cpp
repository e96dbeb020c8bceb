#include <tessera/comm/communicator.h>
#include <tessera/core/error.h>
#include <tessera/flight/clock.h>
#include <tessera/flight/recorder.h>

#include <exception>
#include <string_view>
#include <utility>

#include "comm/work_state.h"

namespace tessera {

Work::State::~State() {
  // A collective keeps its own tensors. A message does not, so the group takes over one that is dropped unfinished.
  if (on_device && work && !finished) group->adopt(std::move(work), std::move(kept));
  if (transfer && !finished) {
    group->adopt(std::move(transfer), std::move(kept), std::string_view(operation) == "send");
  }
}

std::string Work::State::describe() const {
  return std::string(operation) + " #" + std::to_string(sequence) + " of group " + group->name() + ", called on rank " +
         std::to_string(group->rank()) + " of " + std::to_string(group->size()) + " at " + where.file_name() + ":" +
         std::to_string(where.line());
}

void Work::State::rethrow() {
  group->world().recorder->end(ticket, true);
  finished = true;
  const std::string context = describe() + ": ";
  try {
    throw;
  } catch (const ConfigError& error) {
    failure = std::make_exception_ptr(ConfigError(context + error.what()));
  } catch (const StorageError& error) {
    failure = std::make_exception_ptr(StorageError(context + error.what()));
  } catch (const InternalError& error) {
    failure = std::make_exception_ptr(InternalError(context + error.what()));
  } catch (const c10::Error& error) {
    fail(context + error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(context + error.what());
  }
  std::rethrow_exception(failure);
}

void Work::State::fail(const std::string& text) {
  if (group->world().watch) group->world().watch->explain(text);
  failure = std::make_exception_ptr(CommError(text));
}

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Work::wait() {
  if (!state_) return;
  if (state_->failure) std::rethrow_exception(state_->failure);
  if (state_->finished) return;
  flight::Recorder& recorder = *state_->group->world().recorder;
  const std::int64_t began_ns = recorder.is_heard() ? flight::now_ns() : 0;
  if (!state_->is_collective()) recorder.set_awaited(state_->ticket, true);
  try {
    if (state_->transfer) {
      state_->transfer->wait(std::chrono::steady_clock::now() + state_->timeout);
    } else if (state_->work) {
      state_->work->wait(kNoTimeout);
    }
    if (state_->finish) state_->finish();
  } catch (...) {
    state_->rethrow();
  }
  state_->finished = true;
  state_->finish = nullptr;
  state_->kept.clear();
  if (state_->on_device) return;  // its record ends when the device is done
  const std::int64_t done_ns = state_->done_ns ? state_->done_ns->load() : 0;
  if (began_ns != 0) state_->blocked_ns += flight::now_ns() - began_ns;
  recorder.end(state_->ticket, false, done_ns, state_->blocked_ns);
}

at::Tensor Work::result() {
  wait();
  if (!state_ || !state_->result.defined()) throw ConfigError("this operation makes no tensor on this rank");
  return state_->result;
}

bool Work::is_completed() const {
  if (!state_ || state_->finished) return true;
  if (state_->transfer) return state_->transfer->test();
  return !state_->work || state_->work->isCompleted();
}

}  // namespace tessera
