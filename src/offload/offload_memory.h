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
#include "offload/kept_tensor.h"
#include "offload/piece_stream.h"
#include "offload/places.h"

namespace tessera::offload {

/// The shards of a model on one rank, with their gradients and what an optimizer keeps for them.
class OffloadMemory : public shard::TrainedMemory, public std::enable_shared_from_this<OffloadMemory> {
 public:
  explicit OffloadMemory(std::shared_ptr<Places> places) : places_(std::move(places)) {}

  /// From now on the optimizer's states of tensors in this shard are kept here. `source` has the shard in a file; null:
  /// it is in memory. Requires: forget() before the one or the other is gone.
  void keep(const at::Tensor& shard, FileSource* source, std::string name);
  void forget(const at::Tensor& shard);
  /// Keeps a shard's averaged gradient, or adds it to the one that is kept. Returns what stands for it.
  at::Tensor keep_gradient(const at::Tensor& shard, const at::Tensor& average);
  void on_writes(std::function<void()> begin, std::function<void()> end);
  /// Frees the copy of a part of the parameters that was not used for longest; returns whether there was one.
  bool drop_one_copy();

  at::Tensor keep_state(const at::Tensor& trained, std::size_t which, const at::Tensor& state) override;
  bool keeps_gradient(const at::Tensor& trained) const override;
  void read_gradients(const std::vector<at::Tensor>& trained,
                      const std::function<void(const at::Tensor& piece)>& read) override;
  void scale_gradient(const at::Tensor& trained, double factor) override;
  at::Tensor read(const at::Tensor& kept) const override;
  void step(const Stepped& stepped, const std::function<void(const Piece& piece)>& update) override;

 private:
  /// What one or several optimizers keep.
  struct State {
    std::size_t which;
    std::unique_ptr<KeptTensor> values;
    std::unique_ptr<shard::TrainedMemoryNote> note;
  };
  struct Shard {
    at::Tensor tensor;
    FileSource* source;  // null: the tensor has its bytes
    std::string name;
    std::unique_ptr<shard::TrainedMemoryNote> note;
    std::vector<State> states;
    std::unique_ptr<KeptTensor> gradient;  // null: gradients are ordinary tensors
    std::vector<double> factors;           // by which the gradient is to be multiplied, one after another
  };
  /// Where a trained tensor lies in a shard.
  struct Part {
    std::size_t index;  // among the tensors that are asked for
    std::int64_t first;
    std::int64_t end;
  };
  /// Parts of a shard that are stepped together: their states lie together.
  struct Group {
    std::size_t shard;
    std::vector<const KeptTensor*> states;
    std::vector<Part> parts;
  };
  Shard* find(const at::Tensor& trained) const;
  Shard& shard_of(const at::Tensor& trained) const;
  static std::vector<Part> parts_in(const Shard& shard, const std::vector<at::Tensor>& trained);
  State& make_state(Shard& shard, std::size_t which);
  std::vector<Group> groups_of(const Stepped& stepped) const;
  StreamedTensor gradient_of(const Shard& shard) const;
  StreamedTensor values_of(const Shard& shard) const;
  void add_pieces(const Shard& shard, const std::vector<Part>& parts, std::vector<StreamedTensor> tensors,
                  std::size_t index, std::vector<StreamedPiece>& pieces) const;

  std::shared_ptr<Places> places_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::function<void()> begin_write_;
  std::function<void()> end_write_;
};

}  // namespace tessera::offload
