#include "offload/offload_memory.h"

#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

namespace tessera::offload {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

std::int64_t place_in(const at::Tensor& shard, const at::Tensor& trained) {
  return trained.storage_offset() - shard.storage_offset();
}

}  // namespace

void OffloadMemory::keep(const at::Tensor& shard, FileSource* source, std::string name) {
  auto kept = std::make_unique<Shard>(Shard{.tensor = shard,
                                            .source = source,
                                            .name = std::move(name),
                                            .note = nullptr,
                                            .states = {},
                                            .gradient = nullptr,
                                            .factors = {}});
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

OffloadMemory::Shard* OffloadMemory::find(const at::Tensor& trained) const {
  const auto found =
      std::ranges::find_if(shards_, [&](const auto& one) { return storage_of(one->tensor) == storage_of(trained); });
  return found == shards_.end() ? nullptr : found->get();
}

OffloadMemory::Shard& OffloadMemory::shard_of(const at::Tensor& trained) const {
  if (Shard* const found = find(trained)) return *found;
  throw InternalError("offload: a tensor is to be stepped that is not kept here");
}

// ---- what is kept ---------------------------------------------------------------------------------------------------

OffloadMemory::State& OffloadMemory::make_state(Shard& shard, std::size_t which) {
  const std::string what = "the optimizer state of " + shard.name;
  auto values = std::make_unique<KeptTensor>(
      places_, places_->options.states(), Kind::kStates, shard.tensor.numel(), shard.tensor.scalar_type(), what,
      what + " lies in a file (OffloadOptions::states), where only the step of tessera::optim::AdamW reads it");
  auto note = std::make_unique<shard::TrainedMemoryNote>(values->whole(), weak_from_this());
  return shard.states.emplace_back(State{which, std::move(values), std::move(note)});
}

at::Tensor OffloadMemory::keep_state(const at::Tensor& trained, std::size_t which, const at::Tensor& state) {
  places_->require_whole();
  Shard& shard = shard_of(trained);
  const auto holds = [&](const State& one) { return one.values->holds(state); };
  if (state.defined() && std::ranges::any_of(shard.states, holds)) return state;
  const std::int64_t first = place_in(shard.tensor, trained);
  const std::int64_t end = first + trained.numel();
  const auto free = std::ranges::find_if(
      shard.states, [&](const State& one) { return one.which == which && !one.values->is_taken(first, end); });
  KeptTensor& kept = *(free == shard.states.end() ? make_state(shard, which) : *free).values;
  if (state.defined()) {
    kept.set_values(first, state);
  } else if (kept.was_taken(first, end)) {
    // By an optimizer that is gone: a new one begins with nothing.
    kept.set_values(first, at::zeros(trained.sizes(), trained.options()));
  }
  return kept.stand_in(first, trained.sizes());
}

at::Tensor OffloadMemory::keep_gradient(const at::Tensor& tensor, const at::Tensor& average) {
  places_->require_whole();
  Shard& shard = shard_of(tensor);
  const std::string what = "the gradients of " + shard.name;
  if (!shard.gradient) {
    shard.gradient = std::make_unique<KeptTensor>(
        places_, Tier::kFile, Kind::kGradients, tensor.numel(), average.scalar_type(), what,
        what +
            " lie in a file (OffloadOptions::gradients), where tessera::clip_grad_norm and the step of "
            "tessera::optim::AdamW read them. For anything else keep gradients in host memory");
  }
  const bool adds = tensor.grad().defined() && shard.gradient->holds(tensor.grad());
  if (adds && !shard.factors.empty()) {
    throw ConfigError("gradients of " + shard.name +
                      " are to be added to those that clip_grad_norm() has scaled: step "
                      "the optimizer, or clear them, before the next backward");
  }
  shard.factors.clear();
  shard.gradient->set_values(0, average, adds);
  return shard.gradient->stand_in(0, tensor.sizes());
}

bool OffloadMemory::keeps_gradient(const at::Tensor& trained) const {
  const Shard* const shard = find(trained);
  return shard && shard->gradient && trained.grad().defined() && shard->gradient->holds(trained.grad());
}

void OffloadMemory::scale_gradient(const at::Tensor& trained, double factor) {
  shard_of(trained).factors.push_back(factor);
}

at::Tensor OffloadMemory::read(const at::Tensor& kept) const {
  places_->require_whole();
  const FileBlock* block = nullptr;
  std::string what;
  for (const auto& shard : shards_) {
    if (shard->source && storage_of(shard->tensor) == storage_of(kept)) block = &shard->source->block();
    for (const State& state : shard->states) {
      if (state.values->holds(kept)) block = state.values->streamed().block;
    }
    if (block) what = "what is read of " + shard->name;
    if (block) break;
  }
  if (!block) throw InternalError("offload: a tensor is to be read that does not lie in a file");
  // From the beginning of a chunk to the end of one.
  constexpr std::uint64_t kChunk = FileStore::kChunkBytes;
  const std::uint64_t element = kept.element_size();
  const std::uint64_t first = static_cast<std::uint64_t>(kept.storage_offset()) * element;
  const std::uint64_t begin = first / kChunk * kChunk;
  const std::uint64_t end = std::min((first + kept.nbytes() + kChunk - 1) / kChunk * kChunk, block->num_bytes());
  const auto memory = places_->memory->take(end - begin, Kind::kBuffers, what);
  places_->files->read(*block, begin, std::span(memory.get(), end - begin), memory).wait();
  return tensor_in(memory, static_cast<std::int64_t>((end - begin) / element), kept.scalar_type())
      .narrow(0, static_cast<std::int64_t>((first - begin) / element), kept.numel())
      .view(kept.sizes());
}

// ---- pieces ---------------------------------------------------------------------------------------------------------

std::vector<OffloadMemory::Part> OffloadMemory::parts_in(const Shard& shard, const std::vector<at::Tensor>& trained) {
  std::vector<Part> parts;
  for (std::size_t index = 0; index < trained.size(); ++index) {
    if (storage_of(trained[index]) != storage_of(shard.tensor) || trained[index].numel() == 0) continue;
    const std::int64_t first = place_in(shard.tensor, trained[index]);
    parts.push_back({index, first, first + trained[index].numel()});
  }
  return parts;
}

StreamedTensor OffloadMemory::values_of(const Shard& shard) const {
  const at::ScalarType dtype = shard.tensor.scalar_type();
  if (shard.source) return {&shard.source->block(), {}, dtype};
  return {nullptr, shard.tensor.detach(), dtype};
}

StreamedTensor OffloadMemory::gradient_of(const Shard& shard) const {
  StreamedTensor gradient = shard.gradient->streamed();
  gradient.is_changed = false;
  return gradient;
}

void OffloadMemory::add_pieces(const Shard& shard, const std::vector<Part>& parts, std::vector<StreamedTensor> tensors,
                               std::size_t index, std::vector<StreamedPiece>& pieces) const {
  const bool is_in_files = std::ranges::any_of(tensors, [](const StreamedTensor& one) { return one.block != nullptr; });
  const std::int64_t all = shard.tensor.numel();
  const auto most =
      is_in_files ? static_cast<std::int64_t>(PieceStream::kTensorBytes / c10::elementSize(shard.tensor.scalar_type()))
                  : all;
  for (std::int64_t first = 0; first < all; first += most) {
    const std::int64_t size = std::min(most, all - first);
    const bool is_used =
        std::ranges::any_of(parts, [&](const Part& one) { return one.first < first + size && first < one.end; });
    if (is_used) pieces.push_back({tensors, first, size, "the step of " + shard.name, index});
  }
}

void OffloadMemory::read_gradients(const std::vector<at::Tensor>& trained,
                                   const std::function<void(const at::Tensor& piece)>& read) {
  places_->require_whole();
  std::vector<StreamedPiece> pieces;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const std::vector<Part> parts = parts_in(*shards_[i], trained);
    if (!parts.empty()) add_pieces(*shards_[i], parts, {gradient_of(*shards_[i])}, i, pieces);
  }
  PieceStream(*places_).run(pieces, [&](const StreamedPiece& piece, const std::vector<at::Tensor>& tensors) {
    for (const double factor : shards_[piece.index]->factors) tensors[0].mul_(factor);
    read(tensors[0]);
  });
}

std::vector<OffloadMemory::Group> OffloadMemory::groups_of(const Stepped& stepped) const {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = *shards_[i];
    for (const Part& part : parts_in(shard, stepped.trained)) {
      std::vector<const KeptTensor*> states;
      for (const at::Tensor& state : stepped.states[part.index]) {
        const auto found =
            std::ranges::find_if(shard.states, [&](const State& one) { return one.values->holds(state); });
        if (found == shard.states.end()) throw InternalError("offload: a state is to be stepped that is not kept here");
        states.push_back(found->values.get());
      }
      const auto same =
          std::ranges::find_if(groups, [&](const Group& group) { return group.shard == i && group.states == states; });
      Group& group = same == groups.end() ? groups.emplace_back(Group{i, std::move(states), {}}) : *same;
      group.parts.push_back(part);
    }
  }
  return groups;
}

void OffloadMemory::step(const Stepped& stepped, const std::function<void(const Piece& piece)>& update) {
  places_->require_whole();
  if (begin_write_) begin_write_();
  const std::vector<at::Tensor>& trained = stepped.trained;
  const std::vector<Group> groups = groups_of(stepped);
  std::vector<StreamedPiece> pieces;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Shard& shard = *shards_[groups[i].shard];
    if (shard.source) shard.source->prepare_step();
    std::vector<StreamedTensor> tensors{values_of(shard)};
    for (const KeptTensor* const state : groups[i].states) tensors.push_back(state->streamed());
    if (keeps_gradient(trained[groups[i].parts.front().index])) tensors.push_back(gradient_of(shard));
    add_pieces(shard, groups[i].parts, std::move(tensors), i, pieces);
  }
  const auto change = [&](const StreamedPiece& piece, const std::vector<at::Tensor>& tensors) {
    const Group& group = groups[piece.index];
    const std::size_t num_states = group.states.size();
    const bool has_gradient = tensors.size() > num_states + 1;
    if (has_gradient) {
      for (const double factor : shards_[group.shard]->factors) tensors.back().mul_(factor);
    }
    for (const Part& one : group.parts) {
      const std::int64_t begin = std::max(one.first, piece.first);
      const std::int64_t size = std::min(one.end, piece.first + piece.size) - begin;
      if (size <= 0) continue;
      const auto cut = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin - piece.first, size); };
      Piece part{.index = one.index,
                 .parameter = cut(tensors[0]),
                 .gradient = has_gradient ? cut(tensors.back())
                                          : trained[one.index].grad().reshape({-1}).narrow(0, begin - one.first, size),
                 .states = {}};
      for (std::size_t which = 1; which <= num_states; ++which) part.states.push_back(cut(tensors[which]));
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
