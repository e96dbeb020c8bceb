#pragma once

#include <tessera/comm/transport.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <utility>

#include "comm/engine/channels.h"

namespace tessera::comm {

/// A transfer as c10d sees it. Keeps the tensor alive.
class TransferWork : public c10d::Work {
 public:
  TransferWork(int rank, c10d::OpType type, at::Tensor tensor, std::unique_ptr<Transfer> transfer,
               std::chrono::milliseconds timeout)
      : c10d::Work(rank, type), tensor_(std::move(tensor)), transfer_(std::move(transfer)), timeout_(timeout) {}

  bool isCompleted() override { return done_ || transfer_->test(); }
  bool isSuccess() const override { return done_; }
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout.count() <= 0) timeout = timeout_;
    if (!done_) transfer_->wait(std::chrono::steady_clock::now() + timeout);
    done_ = true;
    return true;
  }

 private:
  at::Tensor tensor_;
  std::unique_ptr<Transfer> transfer_;
  std::chrono::milliseconds timeout_;
  bool done_ = false;
};

}  // namespace tessera::comm
