#include "offload/piece_stream.h"

#include <span>
#include <utility>

namespace tessera::offload {
namespace {

constexpr std::size_t kMostAhead = 3;  // pieces that are read while one is changed

}  // namespace

void PieceStream::run(const std::vector<StreamedPiece>& pieces, const Change& change) {
  std::size_t next = 0;
  const std::size_t most_ahead = places_.options.overlap() ? kMostAhead : 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const StreamedPiece& piece = pieces[i];
    if (next == i) read(pieces[next++], /*must=*/true);
    while (next < pieces.size() && next <= i + most_ahead && read(pieces[next], /*must=*/false)) ++next;
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    {
      const Waiting waiting(places_.step_wait_seconds);
      for (const Transfer& one : flight.reads) one.wait();
    }
    std::vector<at::Tensor> tensors;
    for (std::size_t k = 0; k < piece.tensors.size(); ++k) {
      const StreamedTensor& of = piece.tensors[k];
      tensors.push_back(flight.memory[k] ? tensor_in(flight.memory[k], piece.size, of.dtype)
                                         : of.flat.narrow(0, piece.first, piece.size));
    }
    change(piece, tensors);
    tensors.clear();
    write(piece, flight);
  }
}

std::shared_ptr<std::byte> PieceStream::memory_for(std::size_t num_bytes, bool must, const std::string& what) {
  auto memory = places_.memory->try_take(num_bytes, Kind::kBuffers);
  if (memory || !must) return memory;
  while (!memory && !writing_.empty()) {
    const Waiting waiting(places_.step_wait_seconds);
    writing_.front().wait();
    writing_.pop_front();
    memory = places_.memory->try_take(num_bytes, Kind::kBuffers);
  }
  return memory ? memory : places_.memory->take(num_bytes, Kind::kBuffers, what);
}

bool PieceStream::read(const StreamedPiece& piece, bool must) {
  Flight flight;
  for (const StreamedTensor& of : piece.tensors) {
    flight.memory.push_back(of.block ? memory_for(of.bytes_of(piece.size), must, piece.what) : nullptr);
    if (of.block && !flight.memory.back()) return false;
  }
  for (std::size_t k = 0; k < piece.tensors.size(); ++k) {
    const StreamedTensor& of = piece.tensors[k];
    const auto& memory = flight.memory[k];
    if (!memory) continue;
    flight.reads.push_back(places_.files->read(*of.block, of.bytes_of(piece.first),
                                               std::span(memory.get(), of.bytes_of(piece.size)), memory));
  }
  flights_.push_back(std::move(flight));
  return true;
}

void PieceStream::write(const StreamedPiece& piece, const Flight& flight) {
  for (std::size_t k = 0; k < piece.tensors.size(); ++k) {
    const StreamedTensor& of = piece.tensors[k];
    const auto& memory = flight.memory[k];
    if (!memory || !of.is_changed) continue;
    writing_.push_back(places_.files->write(*of.block, of.bytes_of(piece.first),
                                            std::span<const std::byte>(memory.get(), of.bytes_of(piece.size)), memory));
    if (!places_.options.overlap()) writing_.back().wait();
  }
  while (!writing_.empty() && writing_.front().is_done()) {
    writing_.front().wait();  // throws if it failed
    writing_.pop_front();
  }
}

}  // namespace tessera::offload
