#pragma once

#include <tessera/shard/trained_memory.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/file_source.h"
#include "offload/kept_state.h"
#include "offload/places.h"

namespace tessera::offload {

/// The shards of a model and what an optimizer keeps for them, as one rank has them.
class OffloadMemory : public shard::TrainedMemory, public std::enable_shared_from_this<OffloadMemory> {
 public:
  explicit OffloadMemory(std::shared_ptr<Places> places) : places_(std::move(places)) {}

  /// From now on the optimizer's states of tensors in this shard are kept here. `source` has the shard in a file; null:
  /// it is in memory. Requires: forget() before the one or the other is gone.
  void keep(const at::Tensor& shard, FileSource* source, std::string name);
  void forget(const at::Tensor& shard);
  void on_writes(std::function<void()> begin, std::function<void()> end);
  /// Frees the copy of a part of the parameters that was not used for longest; returns whether there was one.
  bool drop_one_copy();

  at::Tensor keep_state(const at::Tensor& trained, std::size_t which, const at::Tensor& state) override;
  void step(const std::vector<at::Tensor>& trained, std::size_t num_states,
            const std::function<void(const Piece& piece)>& update) override;

 private:
  struct Shard {
    at::Tensor tensor;
    FileSource* source;  // null: the tensor has its bytes
    std::string name;
    std::unique_ptr<shard::TrainedMemoryNote> note;
    std::vector<std::unique_ptr<KeptState>> states;
  };
  Shard& shard_of(const at::Tensor& trained);

  std::shared_ptr<Places> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::function<void()> begin_write_;
  std::function<void()> end_write_;
};

}  // namespace tessera::offload
