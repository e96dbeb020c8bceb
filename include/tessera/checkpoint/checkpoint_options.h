#pragma once

#include <tessera/core/options.h>

#include <torch/arg.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera {

struct CheckpointOptions {
  /// How many of the newest steps stay. 0: all of them.
  TORCH_ARG(std::int64_t, keep_last) = 0;
  /// Steps whose number is a multiple of it stay for good, besides the newest. 0: none.
  TORCH_ARG(std::int64_t, keep_every) = 0;
  /// Training goes on while the disk is written: save() returns when the bytes are copied. Costs the memory of up to
  /// two copies of what this rank writes.
  TORCH_ARG(bool, asynchronous) = false;
  /// A group of tensors that is larger becomes several files and an index, as Hugging Face does it.
  TORCH_ARG(std::int64_t, max_file_bytes) = std::int64_t{5} << 30;
  /// How long rank 0 waits until all ranks have written their part, and ranks for each other when they have written or
  /// loaded theirs. Raise it for slow disks.
  TORCH_ARG(std::chrono::milliseconds, peer_timeout) = std::chrono::minutes(30);
  /// "auto": on a terminal rank 0 shows how far a save or a load is. "off": it does not.
  TORCH_ARG(std::string, progress) = "auto";

 public:
  static const FieldList<CheckpointOptions>& fields();
};

}  // namespace tessera
