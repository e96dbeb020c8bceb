#include "fsdp/same_path.h"

#include <tessera/core/error.h>
#include <tessera/shard/same_model.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>

namespace tessera::fsdp {
namespace {

// A long evaluation must not take memory without end.
constexpr std::size_t kMaxEvents = 10'000;
constexpr std::uint64_t kPrime = 1099511628211U;  // of FNV-1a

}  // namespace

void SamePath::note(Event event, int unit) {
  const int code = 2 * unit + (event == Event::kAverage ? 1 : 0);
  number_ = (number_ ^ static_cast<std::uint64_t>(code + 1)) * kPrime;
  if (events_.size() < kMaxEvents) events_.push_back(code);
}

void SamePath::require_agreement(const Communicator& comm, const NameOf& name_of) const {
  if (comm.size() == 1) return;
  const at::NoGradGuard no_grad;
  const auto path = static_cast<std::int64_t>(number_ >> 1);
  const at::Tensor extremes = at::tensor({path, -path}, at::kLong);
  comm.all_reduce(extremes, ReduceOp::kMax);
  const auto* found = extremes.const_data_ptr<std::int64_t>();
  if (found[0] == -found[1]) return;
  std::vector<std::string> lines;
  for (const int code : events_) {
    lines.push_back((code % 2 == 1 ? "averages " : "gathers ") + name_of(code / 2));
  }
  require_same_lines(comm, lines, "do not take the same path through the model",
                     "Parameters are gathered by all ranks together: take the same branch on every rank, by numbers "
                     "that all ranks have");
  throw ConfigError("the ranks of group " + comm.name() +
                    " do not take the same path through the model: they part after " + std::to_string(events_.size()) +
                    " gathers and averages");
}

void SamePath::forget() {
  number_ = 0;
  events_.clear();
}

}  // namespace tessera::fsdp
