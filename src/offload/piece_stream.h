#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/places.h"

namespace tessera::offload {

/// A tensor of which pieces are read, changed and written.
struct StreamedTensor {
  const FileBlock* block = nullptr;  ///< where it lies; null: in memory
  at::Tensor flat;                   ///< its memory, if it is there
  at::ScalarType dtype = at::kFloat;
  bool is_changed = true;  ///< else it need not be written

  std::size_t bytes_of(std::int64_t num_elements) const {
    return static_cast<std::size_t>(num_elements) * c10::elementSize(dtype);
  }
};

/// The same elements of several tensors.
struct StreamedPiece {
  std::vector<StreamedTensor> tensors;
  std::int64_t first = 0;
  std::int64_t size = 0;
  std::string what;       ///< for messages
  std::size_t index = 0;  ///< for the caller
};

/// Goes through pieces: while one is changed, the next are read and those before are written.
///
/// Note [Three things at once]
/// The memory for all of it is a few pieces, whatever the size of the model. Pieces that come next are read as far as
/// there is memory; the present one waits for those that are being written if it must.
class PieceStream {
 public:
  /// Of one tensor in a piece: long enough for the disk, short enough for the memory.
  static constexpr std::size_t kTensorBytes = std::size_t{4} << 20;

  explicit PieceStream(Places& places) : places_(places) {}

  /// `change` is given the present piece, and its tensors in memory.
  using Change = std::function<void(const StreamedPiece& piece, const std::vector<at::Tensor>& tensors)>;
  /// Throws StorageError. Blocks: until all is read and changed, and its writing has begun.
  void run(const std::vector<StreamedPiece>& pieces, const Change& change);

 private:
  struct Flight {
    std::vector<std::shared_ptr<std::byte>> memory;  // of each tensor; null: it is in memory
    std::vector<Transfer> reads;
  };
  bool read(const StreamedPiece& piece, bool must);
  std::shared_ptr<std::byte> memory_for(std::size_t num_bytes, bool must, const std::string& what);
  void write(const StreamedPiece& piece, const Flight& flight);

  Places& places_;
  std::deque<Flight> flights_;    // the present piece and those that come next
  std::deque<Transfer> writing_;  // the oldest first
};

}  // namespace tessera::offload
