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
struct Lane {
  const FileBlock* block = nullptr;  ///< where it lies; null: in memory
  at::Tensor flat;                   ///< its memory, if it is there
  at::ScalarType dtype = at::kFloat;
};

/// Elements of lanes that belong together.
struct LanePiece {
  std::vector<Lane> lanes;
  std::int64_t first = 0;
  std::int64_t size = 0;
  std::string what;   ///< for messages
  std::size_t index;  ///< for the caller
};

/// Goes through pieces: while one is changed, the next are read and those before are written.
///
/// Note [Three things at once]
/// The memory for all of it is a few pieces, whatever the size of the model. Pieces that come next are read as far as
/// there is memory; the present one waits for those that are being written if it must.
class PieceStream {
 public:
  /// A transfer of one lane: long enough for the disk, short enough for the memory.
  static constexpr std::size_t kLaneBytes = std::size_t{4} << 20;

  explicit PieceStream(Places& places) : places_(places) {}

  /// `change` is given the present piece, and its lanes as tensors.
  using Change = std::function<void(const LanePiece& piece, const std::vector<at::Tensor>& lanes)>;
  /// Throws StorageError. Blocks: until all is read and changed, and its writing has begun.
  void run(const std::vector<LanePiece>& pieces, const Change& change);

 private:
  struct Flight {
    std::vector<std::shared_ptr<std::byte>> memory;  // of each lane; null: it is in memory
    std::vector<Transfer> reads;
  };
  bool read(const LanePiece& piece, bool must);
  void write(const LanePiece& piece, const Flight& flight);

  Places& places_;
  std::deque<Flight> flights_;    // the present piece and those that come next
  std::deque<Transfer> writing_;  // the oldest first
};

}  // namespace tessera::offload
