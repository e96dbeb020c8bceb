#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace tessera::fsdp {

/// Refuses whoever asks for the shards' bytes. What a listener throws is swallowed by LibTorch: so the operator that it
/// would stop is made to say it. Values stay as they are.
class ShardLock {
 public:
  explicit ShardLock(std::vector<at::Tensor> shards) : shards_(std::move(shards)) {}

  void refuse(const std::string& why);
  /// The shards may be used again.
  void allow();

 private:
  std::vector<at::Tensor> shards_;
  bool refuses_ = false;
};

}  // namespace tessera::fsdp
