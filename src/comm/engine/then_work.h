#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>

namespace tessera::comm {

/// `work`, completed by `finish`, which runs once: before a waiter returns, or before the future completes.
c10::intrusive_ptr<c10d::Work> then(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish);

}  // namespace tessera::comm
