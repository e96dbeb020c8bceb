#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::shard {

/// Keeps trained tensors, and what an optimizer remembers of them, where no kernel reaches them, and brings them piece
/// by piece while the optimizer steps. Who keeps such memory implements it, optimizers that know it ask for it.
/// Thread-safety: used by the thread that trains.
class TrainedMemory {
 public:
  /// Some elements of a trained tensor and what goes with them, one-dimensional and on one device. They begin at a
  /// boundary of a vector (64 bytes), and so do the next ones.
  struct Piece {
    std::size_t index;  ///< of the tensor, among those that are stepped
    at::Tensor parameter;
    at::Tensor gradient;
    std::vector<at::Tensor> states;
  };

  virtual ~TrainedMemory() = default;

  /// What stands in an optimizer for the tensor number `which` that it keeps for `trained`. It may have no bytes. The
  /// values are those of `state`, zeros if that is undefined; returns `state` itself if it stands for them already.
  /// Each optimizer has its own: what stands for a state is nobody else's for as long as it lives.
  virtual at::Tensor keep_state(const at::Tensor& trained, std::size_t which, const at::Tensor& state) = 0;
  /// Whether the gradient of `trained` has no bytes: then only the functions below can use it.
  virtual bool keeps_gradient(const at::Tensor& trained) const = 0;
  /// Calls `read` with the gradients of these tensors, piece by piece; the pieces are gone when it returns.
  virtual void read_gradients(const std::vector<at::Tensor>& trained,
                              const std::function<void(const at::Tensor& piece)>& read) = 0;
  /// Multiplies the gradient when it is next used. Once for each shard: a shard has one gradient.
  virtual void scale_gradient(const at::Tensor& trained, double factor) = 0;
  /// The values of something that is kept here, a trained tensor or a part of one or of its state, in memory that the
  /// result keeps. Throws StorageError where there is no room for them.
  virtual at::Tensor read(const at::Tensor& kept) const = 0;
  /// Tensors to be stepped, and what keep_state() gave for each.
  struct Stepped {
    std::vector<at::Tensor> trained;
    std::vector<std::vector<at::Tensor>> states;
  };
  /// Calls `update` for all pieces of these tensors, which it changes in place; they are gone when it returns.
  /// Throws StorageError; then a part of the tensors was stepped, and all that is asked of this memory throws.
  /// Requires: a dense gradient for each.
  virtual void step(const Stepped& stepped, const std::function<void(const Piece& piece)>& update) = 0;
};

/// As long as it lives, trained_memory_of() finds `memory` for tensors in the storage of `kept`.
class TrainedMemoryNote {
 public:
  TrainedMemoryNote(const at::Tensor& kept, std::weak_ptr<TrainedMemory> memory);
  ~TrainedMemoryNote();
  TrainedMemoryNote(const TrainedMemoryNote&) = delete;
  TrainedMemoryNote& operator=(const TrainedMemoryNote&) = delete;

 private:
  at::Tensor kept_;
};

/// Null for a tensor that nobody keeps.
std::shared_ptr<TrainedMemory> trained_memory_of(const at::Tensor& trained);
/// Whether it has no bytes, so that a pointer to them would be an error.
bool has_no_bytes(const at::Tensor& tensor);
/// The tensor itself; one whose bytes lie elsewhere, read from there.
at::Tensor readable(const at::Tensor& tensor);

}  // namespace tessera::shard
