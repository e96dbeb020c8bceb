#include "offload/offload_memory.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "offload/piece_stream.h"

namespace tessera::offload {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

/// Of the tensors that are stepped, those that lie in one shard.
struct Stepped {
  std::size_t index;
  std::int64_t first;
  std::int64_t end;
};

}  // namespace

void OffloadMemory::keep(const at::Tensor& shard, FileSource* source, std::string name) {
  auto kept = std::make_unique<Shard>(Shard{shard, source, std::move(name), nullptr, {}});
  kept->note = std::make_unique<shard::TrainedMemoryNote>(shard, weak_from_this());
  shards_.push_back(std::move(kept));
}

void OffloadMemory::forget(const at::Tensor& shard) {
  std::erase_if(shards_, [&](const auto& one) { return storage_of(one->tensor) == storage_of(shard); });
}

void OffloadMemory::on_writes(std::function<void()> begin, std::function<void()> end) {
  begin_write_ = std::move(begin);
  end_write_ = std::move(end);
}

bool OffloadMemory::drop_one_copy() {
  FileSource* oldest = nullptr;
  for (const auto& shard : shards_) {
    FileSource* const source = shard->source;
    if (source && source->has_copy() && (!oldest || source->last_use() < oldest->last_use())) oldest = source;
  }
  return oldest && oldest->drop_copy();
}

OffloadMemory::Shard& OffloadMemory::shard_of(const at::Tensor& trained) {
  const auto found =
      std::ranges::find_if(shards_, [&](const auto& one) { return storage_of(one->tensor) == storage_of(trained); });
  if (found == shards_.end()) throw InternalError("offload: a tensor is to be stepped that is not kept here");
  return **found;
}

at::Tensor OffloadMemory::keep_state(const at::Tensor& trained, std::size_t which, const at::Tensor& state) {
  places_->require_whole();
  Shard& shard = shard_of(trained);
  while (shard.states.size() <= which) {
    shard.states.push_back(std::make_unique<KeptState>(places_, shard.tensor.numel(), shard.tensor.scalar_type(),
                                                       "the optimizer state of " + shard.name));
  }
  KeptState& kept = *shard.states[which];
  if (state.defined() && kept.holds(state)) return state;
  const std::int64_t first = trained.storage_offset() - shard.tensor.storage_offset();
  if (state.defined()) kept.set_values(first, state);
  return kept.stand_in(first, trained.sizes());
}

void OffloadMemory::step(const std::vector<at::Tensor>& trained, std::size_t num_states,
                         const std::function<void(const Piece& piece)>& update) {
  places_->require_whole();
  if (begin_write_) begin_write_();
  std::vector<LanePiece> pieces;
  std::vector<std::vector<Stepped>> stepped(shards_.size());
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = *shards_[i];
    for (std::size_t index = 0; index < trained.size(); ++index) {
      if (storage_of(trained[index]) != storage_of(shard.tensor) || trained[index].numel() == 0) continue;
      const std::int64_t first = trained[index].storage_offset() - shard.tensor.storage_offset();
      stepped[i].push_back({index, first, first + trained[index].numel()});
    }
    if (stepped[i].empty()) continue;
    if (shard.source) shard.source->prepare_step();
    const at::ScalarType dtype = shard.tensor.scalar_type();
    std::vector<Lane> lanes{shard.source ? Lane{&shard.source->block(), {}, dtype}
                                         : Lane{nullptr, shard.tensor.detach(), dtype}};
    bool is_in_files = shard.source != nullptr;
    for (std::size_t which = 0; which < num_states; ++which) {
      const KeptState& state = *shard.states.at(which);
      lanes.push_back({state.block(), state.block() ? at::Tensor() : state.flat(), dtype});
      is_in_files = is_in_files || state.block();
    }
    const auto most = is_in_files ? static_cast<std::int64_t>(PieceStream::kLaneBytes / c10::elementSize(dtype))
                                  : shard.tensor.numel();
    for (std::int64_t first = 0; first < shard.tensor.numel(); first += most) {
      const std::int64_t size = std::min(most, shard.tensor.numel() - first);
      const bool is_used = std::ranges::any_of(
          stepped[i], [&](const Stepped& one) { return one.first < first + size && first < one.end; });
      if (is_used) pieces.push_back({lanes, first, size, "the step of " + shard.name, i});
    }
  }
  const auto change = [&](const LanePiece& piece, const std::vector<at::Tensor>& lanes) {
    for (const Stepped& one : stepped[piece.index]) {
      const std::int64_t begin = std::max(one.first, piece.first);
      const std::int64_t end = std::min(one.end, piece.first + piece.size);
      if (begin >= end) continue;
      Piece part{.index = one.index,
                 .parameter = lanes[0].narrow(0, begin - piece.first, end - begin),
                 .gradient = trained[one.index].grad().reshape({-1}).narrow(0, begin - one.first, end - begin),
                 .states = {}};
      for (std::size_t lane = 1; lane < lanes.size(); ++lane) {
        part.states.push_back(lanes[lane].narrow(0, begin - piece.first, end - begin));
      }
      update(part);
    }
  };
  try {
    PieceStream(*places_).run(pieces, change);
  } catch (const std::exception& error) {
    places_->broken = error.what();
    throw;
  }
  if (end_write_) end_write_();
}

}  // namespace tessera::offload
